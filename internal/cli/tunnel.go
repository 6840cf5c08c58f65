package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// tunnel is one tunnel as commands print it.
type tunnel struct {
	ID            string     `json:"id"`
	Name          string     `json:"name"`
	URL           string     `json:"url"`
	Kind          string     `json:"kind"`
	Hostname      string     `json:"hostname,omitempty"`
	Port          uint32     `json:"port,omitempty"`
	PortLast      uint32     `json:"port_last,omitempty"`
	HTTPPorts     []uint32   `json:"http_ports,omitempty"`
	State         string     `json:"state"`
	Reason        string     `json:"reason"`
	Detail        string     `json:"detail"`
	Access        string     `json:"access"`
	CarrierPolicy string     `json:"carrier_policy"`
	Origins       []string   `json:"origins"`
	Tenant        string     `json:"tenant"`
	Source        string     `json:"source"`
	Replicas      uint32     `json:"replicas"`
	Conflicts     []conflict `json:"conflicts"`
	CreatedAt     *time.Time `json:"created_at"`
	OrphanedAt    *time.Time `json:"orphaned_at"`
	// Of managed tunnels only.
	Label           string   `json:"label,omitempty"`
	Agent           string   `json:"agent,omitempty"`
	Version         uint64   `json:"version,omitempty"`
	Owner           string   `json:"owner,omitempty"`
	Disabled        bool     `json:"disabled,omitempty"`
	ResponseTimeout uint32   `json:"response_timeout_seconds,omitempty"`
	WebsocketOff    bool     `json:"websocket_off,omitempty"`
	HostHeader      string   `json:"host_header,omitempty"`
	UpstreamUser    string   `json:"upstream_user,omitempty"`
	HealthCheck     string   `json:"health_check,omitempty"`
	Warnings        []string `json:"warnings,omitempty"`
}

// conflict is a claim for the same name or port that lost.
type conflict struct {
	Key    string `json:"key"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func kindText(k wirev1.Kind) string { return enumText(k.String(), "KIND_") }

// enumText is an enum value as people write it.
func enumText(s, prefix string) string {
	s = strings.ToLower(strings.TrimPrefix(s, prefix))
	if s == "unspecified" {
		return ""
	}
	return s
}

func accessText(m hubv1.Access_Mode) string {
	if m == hubv1.Access_MODE_PUBLIC {
		return "public"
	}
	return "protected"
}

func tunnelView(s *hubv1.TunnelStatus) tunnel {
	t := s.GetTunnel()
	v := tunnel{ID: t.GetId(), Name: t.GetName(), URL: s.GetUrl(), Kind: kindText(t.GetKind()), Hostname: t.GetHostname(),
		Port: t.GetPort(), PortLast: t.GetPortLast(), HTTPPorts: t.GetHttpPorts(), State: s.GetState(), Reason: s.GetReason(), Detail: s.GetDetail(),
		Access: accessText(t.GetAccess().GetMode()), CarrierPolicy: enumText(t.GetCarrierPolicy().String(), "CARRIER_POLICY_"),
		Origins: []string{}, Tenant: t.GetTenant(), Source: t.GetSource(), Replicas: s.GetReplicas(), Conflicts: []conflict{},
		CreatedAt: when(t.GetCreatedAt()), OrphanedAt: when(t.GetOrphanedAt())}
	v.Label, v.Agent, v.Version, v.Owner, v.Disabled = t.GetLabel(), s.GetAgent(), t.GetVersion(), t.GetOwner(), t.GetDisabled()
	v.ResponseTimeout, v.WebsocketOff, v.UpstreamUser, v.Warnings = t.GetResponseTimeoutSeconds(), t.GetWebsocketOff(), t.GetUpstreamBasicAuth().GetUser(), s.GetWarnings()
	if len(t.GetOrigins()) > 0 {
		v.HostHeader = t.GetOrigins()[0].GetHostHeader()
	}
	if h := t.GetHealthCheck(); h != nil {
		v.HealthCheck = "connection"
		if h.GetPath() != "" {
			v.HealthCheck = "GET " + h.GetPath()
		}
	}
	if v.CarrierPolicy == "" {
		v.CarrierPolicy = "auto"
	}
	for _, o := range t.GetOrigins() {
		// The origin of a range of ports names none: it is reached at the visitor's.
		v.Origins = append(v.Origins, strings.TrimSuffix(o.GetUrl(), ":0"))
	}
	for _, c := range s.GetConflicts() {
		v.Conflicts = append(v.Conflicts, conflict{Key: c.GetKey(), Code: c.GetCode(), Detail: c.GetDetail()})
	}
	return v
}

// label is how commands name the tunnel.
func (t tunnel) label() string {
	if t.Hostname != "" {
		return t.Hostname
	}
	return t.Kind + ":" + rangeText(t.Port, t.PortLast)
}

func (c *client) allTunnels(ctx context.Context, filter string) ([]tunnel, error) {
	all := []tunnel{}
	err := pages(func(token string) (string, error) {
		resp, err := c.tunnels().ListTunnels(ctx, &hubv1.ListTunnelsRequest{PageToken: token, Filter: filter})
		if err != nil {
			return "", err
		}
		for _, t := range resp.GetTunnels() {
			all = append(all, tunnelView(t))
		}
		return resp.GetNextPageToken(), nil
	})
	return all, err
}

func (a *app) tunnelCommand() *cobra.Command {
	c := &cobra.Command{Use: "tunnel", Short: "Public addresses and what is behind them"}
	var filter string
	list := &cobra.Command{
		Use: "list", Short: "List tunnels", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all, err := c.allTunnels(ctx, filter)
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, t := range all {
					state := t.State
					if t.Reason != "" && t.Reason != "ok" {
						state += " (" + t.Reason + ")"
					}
					rows = append(rows, []string{t.label(), t.Kind, state, t.Access, strconv.Itoa(int(t.Replicas)), strings.Join(t.Origins, " "), t.Tenant})
				}
				return a.table([]string{"TUNNEL", "KIND", "STATE", "ACCESS", "REPLICAS", "ORIGIN", "TENANT"}, rows)
			})
		}),
	}
	list.Flags().StringVar(&filter, "filter", "", "only tunnels whose hostname, name or tenant contains this")
	get := &cobra.Command{
		Use: "get LABEL", Short: "Show one tunnel: LABEL is a label, a hostname, tcp:PORT or udp:PORT", Args: oneArg("LABEL"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.tunnels().GetTunnel(ctx, &hubv1.GetTunnelRequest{Label: args[0]})
			if err != nil {
				return err
			}
			t := tunnelView(resp.GetTunnel())
			return a.print(t, func() error { return a.printTunnel(t) })
		}),
	}
	c.AddCommand(list, get, a.tunnelCreate(), a.tunnelSet(), a.tunnelDelete())
	return c
}

func (a *app) printTunnel(t tunnel) error {
	var conflicts []string
	for _, c := range t.Conflicts {
		conflicts = append(conflicts, fmt.Sprintf("%s: %s", c.Code, c.Detail))
	}
	return a.fields("tunnel", t.label(), "id", t.ID, "name", t.Name, "url", t.URL, "kind", t.Kind, "state", t.State, "reason", t.Reason,
		"detail", t.Detail, "clear http ports", strings.Trim(fmt.Sprint(t.HTTPPorts), "[]"), "access", t.Access, "origin", strings.Join(t.Origins, " "), "carrier policy", t.CarrierPolicy,
		"replicas", strconv.Itoa(int(t.Replicas)), "tenant", t.Tenant, "source", t.Source, "agent", t.Agent, "host header", t.HostHeader, "upstream user", t.UpstreamUser, "health check", t.HealthCheck, "created", showTime(t.CreatedAt),
		"offline since", showTime(t.OrphanedAt), "refused claims", strings.Join(conflicts, "; "))
}
