package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// preflightView is what a check found, as commands print it.
type preflightView struct {
	Checked bool `json:"checked"`
	// Why the check, or a part of it, could not be done.
	Why               string        `json:"why"`
	WorkingHostHeader string        `json:"working_host_header"`
	Findings          []findingView `json:"findings"`
}

type findingView struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Evidence string `json:"evidence"`
	FixField string `json:"fix_field"`
	FixValue string `json:"fix_value"`
	FixText  string `json:"fix_text"`
}

var kindsByName = map[string]wirev1.Kind{
	"http": wirev1.Kind_KIND_HTTP, "tls": wirev1.Kind_KIND_TLS, "tcp": wirev1.Kind_KIND_TCP, "udp": wirev1.Kind_KIND_UDP,
}

func (a *app) preflightCommand() *cobra.Command {
	var agent, kind, hostname, hostHeader, serverName string
	var websocket, insecure bool
	c := &cobra.Command{
		Use: "preflight ORIGIN", Short: "Have an agent try an origin, and tell what would go wrong", Args: oneArg("ORIGIN"),
		Long: `Has an agent try ORIGIN as a tunnel would, and tells what would go wrong and which setting helps.
It only reads: GET requests without credentials. It ends with exit code 1 when it found an error, or
could not check.`,
		Example: `  adit preflight http://127.0.0.1:3000 --agent home --hostname app.example.com
  adit preflight tcp://10.0.0.5:5432 --agent home --kind tcp`,
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if agent == "" {
				return usageErrorf("--agent is missing: name the agent that is to try %s; `adit agents list` shows them", args[0])
			}
			k, ok := kindsByName[kind]
			if kind == "" {
				k, ok = kindOf(args[0]), true
			}
			if !ok {
				return usageErrorf("--kind: %q is not possible; use http, tls, tcp or udp", kind)
			}
			resp, err := c.agents().Preflight(ctx, &hubv1.PreflightRequest{Agent: agent, Ask: &hubv1.PreflightAsk{
				Kind: k, Hostname: hostname, Websocket: websocket,
				Origin: &hubv1.Origin{Url: args[0], HostHeader: hostHeader, ServerName: serverName, InsecureSkipVerify: insecure},
			}})
			if err != nil {
				return err
			}
			v := preflightOf(resp.GetAnswer())
			if err := a.print(v, func() error { return a.printPreflight(v) }); err != nil {
				return err
			}
			return v.failure()
		}),
	}
	f := c.Flags()
	f.StringVar(&agent, "agent", "", "name or id of the agent that tries it (required)")
	f.StringVar(&kind, "kind", "", "kind of the tunnel: http, tls, tcp or udp (default by the origin's scheme)")
	f.StringVar(&hostname, "hostname", "", "public host name of the tunnel, tried as Host beside the origin's own")
	f.StringVar(&hostHeader, "host-header", "", `Host that the tunnel sends: empty = the visitor's, "origin", or a name`)
	f.StringVar(&serverName, "origin-server-name", "", "name that an https or tls origin's certificate is verified for")
	f.BoolVar(&insecure, "insecure-skip-verify", false, "do not verify the certificate of an https or tls origin")
	f.BoolVar(&websocket, "websocket", true, "the tunnel lets WebSockets through")
	return c
}

// kindOf is the kind of tunnel that an origin is mostly for.
func kindOf(origin string) wirev1.Kind {
	if u, err := url.Parse(origin); err == nil {
		switch u.Scheme {
		case "tcp", "tls":
			return wirev1.Kind_KIND_TCP
		case "udp":
			return wirev1.Kind_KIND_UDP
		}
	}
	return wirev1.Kind_KIND_HTTP
}

func preflightOf(x *hubv1.PreflightAnswer) preflightView {
	v := preflightView{Checked: x.GetChecked(), Why: x.GetWhy(), WorkingHostHeader: x.GetWorkingHostHeader(), Findings: []findingView{}}
	for _, f := range x.GetFindings() {
		v.Findings = append(v.Findings, findingView{
			ID: f.GetId(), Severity: f.GetSeverity(), Text: f.GetText(), Evidence: f.GetEvidence(),
			FixField: f.GetFixField(), FixValue: f.GetFixValue(), FixText: f.GetFixText(),
		})
	}
	return v
}

// failure is the exit code of a check: what it found was printed already.
func (v preflightView) failure() error {
	errors := 0
	for _, f := range v.Findings {
		if f.Severity == "error" {
			errors++
		}
	}
	switch {
	case errors > 0:
		return failWith(exitFailed, "preflight_failed", "docs/reference/preflight.md tells more of each finding", "%d of the findings keep the tunnel from working", errors)
	case !v.Checked:
		return failWith(exitFailed, "preflight_incomplete", "", "could not check: %s", v.Why)
	}
	return nil
}

func (a *app) printPreflight(v preflightView) error {
	for _, f := range v.Findings {
		fmt.Fprintf(a.Stdout, "%-8s %s\n         %s\n", f.Severity, f.ID, f.Text)
		if f.Evidence != "" {
			fmt.Fprintf(a.Stdout, "         seen: %s\n", f.Evidence)
		}
		help := f.FixText
		if f.FixField != "" && f.FixValue != "" {
			help = strings.TrimSpace(f.FixField + " = " + f.FixValue + ". " + help)
		}
		fmt.Fprintf(a.Stdout, "         help: %s\n", help)
	}
	if len(v.Findings) == 0 && v.Checked {
		a.say("nothing found: the origin looks fine from the agent")
	}
	if v.WorkingHostHeader != "" {
		a.say("works with the Host header of: %s", v.WorkingHostHeader)
	}
	return nil
}
