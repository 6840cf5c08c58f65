package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// discoveredView is what an agent found, as commands print it.
type discoveredView struct {
	ReportedAt *time.Time     `json:"reported_at"`
	Providers  []providerView `json:"providers"`
	Services   []foundView    `json:"services"`
}

type providerView struct {
	Provider string `json:"provider"`
	State    string `json:"state"`
	Detail   string `json:"detail"`
}

type foundView struct {
	ID             string            `json:"id"`
	Provider       string            `json:"provider"`
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	PortName       string            `json:"port_name"`
	Port           uint32            `json:"port"`
	Kind           string            `json:"kind"`
	Origin         string            `json:"origin"`
	Readiness      string            `json:"readiness"`
	ReadyEndpoints uint32            `json:"ready_endpoints"`
	Labels         map[string]string `json:"labels"`
	AppProtocol    string            `json:"app_protocol"`
	SuggestedLabel string            `json:"suggested_label"`
	ExposedBy      []string          `json:"exposed_by"`
}

func (a *app) servicesCommand() *cobra.Command {
	var filter string
	c := &cobra.Command{
		Use: "services NAME|ID", Short: "What an agent found beside it that could be exposed", Args: oneArg("NAME or ID"),
		Example: `  adit agents services home
  adit agents services home --filter grafana`,
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			v := discoveredView{Providers: []providerView{}, Services: []foundView{}}
			err := pages(func(token string) (string, error) {
				resp, err := c.agents().ListServices(ctx, &hubv1.ListServicesRequest{Id: args[0], PageToken: token, Filter: filter})
				if err != nil {
					return "", err
				}
				v.add(resp)
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(v, func() error { return a.printServices(v) })
		}),
	}
	c.Flags().StringVar(&filter, "filter", "", "only services whose name, namespace or address contains this")
	return c
}

func (v *discoveredView) add(r *hubv1.ListServicesResponse) {
	v.ReportedAt, v.Providers = when(r.GetReportedAt()), []providerView{}
	for _, p := range r.GetProviders() {
		v.Providers = append(v.Providers, providerView{p.GetProvider(), p.GetState(), p.GetDetail()})
	}
	for _, s := range r.GetServices() {
		f := foundView{
			ID: s.GetId(), Provider: s.GetProvider(), Namespace: s.GetNamespace(), Name: s.GetName(), PortName: s.GetPortName(), Port: s.GetPort(),
			Kind: strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "KIND_")), Origin: s.GetOrigin(), Readiness: s.GetReadiness(), ReadyEndpoints: s.GetReadyEndpoints(),
			Labels: s.GetLabels(), AppProtocol: s.GetAppProtocol(), SuggestedLabel: s.GetSuggestedLabel(), ExposedBy: s.GetExposedBy(),
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		if f.ExposedBy == nil {
			f.ExposedBy = []string{}
		}
		v.Services = append(v.Services, f)
	}
}

func (a *app) printServices(v discoveredView) error {
	for _, p := range v.Providers {
		if p.State != "ok" {
			a.warn("%s: %s: %s", p.Provider, p.State, p.Detail)
		}
	}
	if v.ReportedAt == nil {
		a.say("the agent has not reported what is beside it; it does unless it runs with --discovery off")
		return nil
	}
	var rows [][]string
	for _, s := range v.Services {
		exposed := strings.Join(s.ExposedBy, " ")
		rows = append(rows, []string{s.Name, s.Namespace, s.Kind, strconv.Itoa(int(s.Port)), s.Origin, s.Readiness, exposed})
	}
	return a.table([]string{"NAME", "NAMESPACE", "KIND", "PORT", "ORIGIN", "READINESS", "EXPOSED BY"}, rows)
}
