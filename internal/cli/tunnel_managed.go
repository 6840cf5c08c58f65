package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
)

// tunnelFlags are the settings of a managed tunnel, for create and set.
type tunnelFlags struct {
	agent, kind, hostname, label, name, access, auth, carrier string
	origins                                                   []string
	httpPorts                                                 []uint
	port                                                      string
	hostHeader, serverName, caFile, proxyProtocol             string
	insecure, noWebsocket, disabled                           bool
	user, passwordFile                                        string
	timeout                                                   time.Duration
	health                                                    bool
	healthPath                                                string
	healthEvery, healthLimit, idle                            time.Duration
	dryRun                                                    bool
}

func (f *tunnelFlags) bind(c *cobra.Command) {
	s := c.Flags()
	s.StringVar(&f.agent, "agent", "", "name or id of the enrolled agent that serves it")
	s.StringVar(&f.name, "name", "", "display name (default the label)")
	s.StringVar(&f.access, "access", "", "public, or protected (default)")
	s.StringVar(&f.auth, "auth", "", "alias of --access: none = public, sso = protected")
	s.StringVar(&f.carrier, "carrier-policy", "", "auto, latency, throughput or, for passthrough, raw")
	s.StringVar(&f.hostHeader, "host-header", "", "Host that the origin sees: visitor (default), origin, or a name")
	s.BoolVar(&f.insecure, "insecure-skip-verify", false, "do not verify the certificate of an https or tls origin")
	s.StringVar(&f.caFile, "origin-ca-file", "", "PEM certificates that an https or tls origin is verified with")
	s.StringVar(&f.serverName, "origin-server-name", "", "name that an https or tls origin is asked for and verified with")
	s.StringVar(&f.proxyProtocol, "proxy-protocol", "", "PROXY header to the origin: none, v1 or v2")
	s.StringVar(&f.user, "upstream-user", "", "user that requests to the origin are signed in as (basic auth)")
	s.StringVar(&f.passwordFile, "upstream-password-file", "", "file with that user's password; - is standard input")
	s.DurationVar(&f.timeout, "response-timeout", 0, "from the end of a request to the first of its response: 1s to 20m; 0 = the edge's default")
	s.BoolVar(&f.noWebsocket, "no-websocket", false, "refuse upgrades to WebSocket")
	s.BoolVar(&f.health, "health-check", false, "have the agent try the origin from time to time")
	s.StringVar(&f.healthPath, "health-path", "", "path that the check gets; it wants 2xx or 3xx")
	s.DurationVar(&f.healthEvery, "health-interval", 0, "between checks: 5s to 1h (default 30s)")
	s.DurationVar(&f.healthLimit, "health-timeout", 0, "until a check has failed: 1s to 60s (default 5s)")
	s.DurationVar(&f.idle, "idle-timeout", 0, "kind udp: when an idle flow ends (default 2m)")
	s.UintSliceVar(&f.httpPorts, "http-port", nil, "kind http: port that serves the host in clear text too; repeatable")
	s.BoolVar(&f.dryRun, "dry-run", false, "store nothing, and show what would be")
}

// kindNames are the kinds as people write them; tls_mode's words are accepted.
var kindNames = map[string]wirev1.Kind{
	"http": wirev1.Kind_KIND_HTTP, "terminate": wirev1.Kind_KIND_HTTP, "tls": wirev1.Kind_KIND_TLS, "passthrough": wirev1.Kind_KIND_TLS,
	"tcp": wirev1.Kind_KIND_TCP, "udp": wirev1.Kind_KIND_UDP,
}

// kindOf is the kind that was said, or that the origin's scheme implies.
func (f *tunnelFlags) kindOf(origin string) (wirev1.Kind, error) {
	if f.kind != "" {
		k, ok := kindNames[strings.ToLower(f.kind)]
		if !ok {
			return 0, usageErrorf("--kind: %q is not possible; use http, tls, tcp or udp", f.kind)
		}
		return k, nil
	}
	switch scheme, _, ok := strings.Cut(origin, "://"); {
	case ok && scheme == "udp":
		return wirev1.Kind_KIND_UDP, nil
	case ok && (scheme == "tcp" || scheme == "tls"):
		return wirev1.Kind_KIND_TCP, nil
	}
	return wirev1.Kind_KIND_HTTP, nil
}

// apply puts what was said into t and returns the fields that changed.
func (a *app) applyTunnelFlags(c *cobra.Command, f *tunnelFlags, t *hubv1.Tunnel) (fields []string, err error) {
	said := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return c.Flags().Changed(n) })
	}
	note := func(field string) {
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	if said("name") {
		t.Name = f.name
		note("name")
	}
	if said("access", "auth") {
		mode, err := exposeFlags{access: f.access, auth: f.auth}.mode()
		if err != nil {
			return nil, usageErrorf("%w", err)
		}
		if t.Access, err = accessMode(mode); err != nil {
			return nil, err
		}
		note("access")
	}
	if said("carrier-policy") {
		v, ok := hubv1.CarrierPolicy_value["CARRIER_POLICY_"+strings.ToUpper(f.carrier)]
		if !ok || v == 0 {
			return nil, usageErrorf("--carrier-policy: %q is not possible; use auto, latency, throughput or raw", f.carrier)
		}
		t.CarrierPolicy = hubv1.CarrierPolicy(v)
		note("carrier_policy")
	}
	if said("http-port") {
		t.HttpPorts = nil
		for _, p := range f.httpPorts {
			t.HttpPorts = append(t.HttpPorts, uint32(min(p, 1<<20)))
		}
		note("http_ports")
	}
	if said("response-timeout") {
		t.ResponseTimeoutSeconds = seconds(f.timeout)
		note("response_timeout_seconds")
	}
	if said("no-websocket") {
		t.WebsocketOff = f.noWebsocket
		note("websocket_off")
	}
	if said("health-check", "health-path", "health-interval", "health-timeout") {
		if t.HealthCheck == nil {
			t.HealthCheck = &hubv1.HealthCheck{}
		}
		f.applyHealth(said, t)
		note("health_check")
	}
	if said("upstream-user", "upstream-password-file") {
		if err := a.applyBasicAuth(f, t); err != nil {
			return nil, err
		}
		note("upstream_basic_auth")
	}
	changed, err := f.applyOrigins(said, t)
	if err != nil {
		return nil, err
	}
	if changed {
		note("origins")
	}
	return fields, nil
}

func accessMode(mode string) (*hubv1.Access, error) {
	if mode == "public" {
		return &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}, nil
	}
	return &hubv1.Access{Mode: hubv1.Access_MODE_PROTECTED}, nil
}

func seconds(d time.Duration) uint32 {
	if d < 0 {
		return 1 << 31 // refused by the hub, which names the bounds
	}
	return uint32(min((d+time.Second-1)/time.Second, 1<<31))
}

func (f *tunnelFlags) applyHealth(said func(...string) bool, t *hubv1.Tunnel) {
	if said("health-check") && !f.health {
		t.HealthCheck = nil
		return
	}
	if said("health-path") {
		t.HealthCheck.Path = f.healthPath
	}
	if said("health-interval") {
		t.HealthCheck.IntervalSeconds = seconds(f.healthEvery)
	}
	if said("health-timeout") {
		t.HealthCheck.TimeoutSeconds = seconds(f.healthLimit)
	}
}

func (a *app) applyBasicAuth(f *tunnelFlags, t *hubv1.Tunnel) error {
	if f.user == "" && f.passwordFile == "" {
		t.UpstreamBasicAuth = nil
		return nil
	}
	password, err := a.readSecret("upstream-password-file", f.passwordFile)
	if err != nil {
		return err
	}
	user := f.user
	if user == "" {
		user = t.GetUpstreamBasicAuth().GetUser()
	}
	t.UpstreamBasicAuth = &hubv1.BasicCredential{User: user, Password: password}
	return nil
}

// applyOrigins sets the origins, and what was said about all of them.
func (f *tunnelFlags) applyOrigins(said func(...string) bool, t *hubv1.Tunnel) (changed bool, err error) {
	if len(f.origins) > 0 {
		changed = true
		var out []*hubv1.Origin
		for i, text := range f.origins {
			bare := t.GetKind() == wirev1.Kind_KIND_UDP && t.GetPortLast() > t.GetPort() && !strings.Contains(text[strings.LastIndex(text, "]")+1:], ":")
			u, err := config.OriginURL(t.GetKind(), text, bare)
			if err != nil {
				return false, usageErrorf("origin %q %w", text, err)
			}
			o := &hubv1.Origin{}
			if i < len(t.GetOrigins()) {
				o = proto.CloneOf(t.GetOrigins()[i]) // its other settings stay
			}
			o.Url = u
			out = append(out, o)
		}
		t.Origins = out
	}
	var ca []byte
	if f.caFile != "" {
		if ca, err = os.ReadFile(f.caFile); err != nil {
			return false, usageErrorf("--origin-ca-file: %w", err)
		}
	}
	for _, o := range t.Origins {
		for _, x := range []struct {
			flag string
			set  func()
		}{
			{"host-header", func() { o.HostHeader = strings.TrimPrefix(f.hostHeader, "visitor") }},
			{"origin-server-name", func() { o.ServerName = f.serverName }},
			{"insecure-skip-verify", func() { o.InsecureSkipVerify = f.insecure }},
			{"origin-ca-file", func() { o.CaPem = ca }},
			{"proxy-protocol", func() { o.ProxyProtocol = f.proxyProtocol }},
			{"idle-timeout", func() { o.IdleTimeoutSeconds = seconds(f.idle) }},
		} {
			if said(x.flag) {
				x.set()
				changed = true
			}
		}
	}
	return changed, nil
}

// applyPort reads P, A-B, or 0 for any free one.
func (f *tunnelFlags) applyPort(t *hubv1.Tunnel) error {
	if f.port == "" || f.port == "0" {
		t.Port, t.PortLast = 0, 0
		return nil
	}
	rs, err := parsePorts("port", []string{f.port})
	if err != nil || len(rs) != 1 {
		return usageErrorf("--port: %q is not possible; give a port, a range A-B (udp), or 0 for any free one", f.port)
	}
	t.Port, t.PortLast = rs[0].GetFirst(), 0
	if rs[0].GetLast() > rs[0].GetFirst() {
		t.PortLast = rs[0].GetLast()
	}
	return nil
}

func (a *app) tunnelCreate() *cobra.Command {
	f := &tunnelFlags{}
	c := &cobra.Command{
		Use: "create [LABEL] ORIGIN...", Short: "Expose a service behind an enrolled agent",
		Long: `Expose a service behind an enrolled agent, without touching the agent.

LABEL is a name below the server's domain; --hostname gives a name of its own instead, and
tunnels of kind tcp and udp have a --port. ORIGIN is the service as the agent dials it:
host:port, or a URL with http, https, h2c, tcp, tls or udp. Several share the requests.`,
		Example: `  adit tunnel create app http://10.0.0.5:3000 --agent home --access public
  adit tunnel create tcp://10.0.0.5:22 --agent home --port 2222 --access public`,
	}
	f.bind(c)
	c.Flags().StringVar(&f.kind, "kind", "", "http, tls (passthrough), tcp or udp (default as the origin's scheme says, else http)")
	c.Flags().StringVar(&f.hostname, "hostname", "", "name of its own instead of LABEL, or *.name")
	c.Flags().StringVar(&f.port, "port", "", "kinds tcp and udp: public port P or range A-B; 0 = any free one")
	c.Flags().BoolVar(&f.disabled, "disabled", false, "switched off at first")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := a.newTunnel(cmd, f, args)
		if err != nil {
			return err
		}
		return a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.tunnels().CreateTunnel(ctx, &hubv1.CreateTunnelRequest{Tunnel: t, Agent: f.agent, DryRun: f.dryRun})
			if err != nil {
				return err
			}
			return a.printChanged(resp.GetTunnel(), f.dryRun, "is created")
		})(cmd, args)
	}
	return c
}

// newTunnel is the tunnel that a create command describes.
func (a *app) newTunnel(cmd *cobra.Command, f *tunnelFlags, args []string) (*hubv1.Tunnel, error) {
	if len(args) == 0 {
		return nil, usageErrorf("ORIGIN is missing: %s", cmd.UseLine())
	}
	if f.agent == "" {
		return nil, usageErrorf("--agent is missing: name the enrolled agent beside the service (adit agents list)")
	}
	kind, err := f.kindOf(args[len(args)-1])
	if err != nil {
		return nil, err
	}
	t := &hubv1.Tunnel{Kind: kind, Hostname: f.hostname, Disabled: f.disabled}
	if kind == wirev1.Kind_KIND_HTTP || kind == wirev1.Kind_KIND_TLS {
		if f.port != "" {
			return nil, usageErrorf("--port is for kinds tcp and udp; http and tls share the server's port")
		}
		if f.hostname == "" {
			if len(args) < 2 {
				return nil, usageErrorf("LABEL is missing: give a name below the server's domain before the origin, or --hostname")
			}
			t.Label, args = args[0], args[1:]
		}
	} else {
		if f.hostname != "" {
			return nil, usageErrorf("--hostname is for kinds http and tls; %s tunnels have a --port", kindText(kind))
		}
		// A word before the origin is its name.
		if len(args) == 2 && !strings.ContainsAny(args[0], ":/") {
			t.Name, args = args[0], args[1:]
		}
		if err := f.applyPort(t); err != nil {
			return nil, err
		}
	}
	f.origins = args
	_, err = a.applyTunnelFlags(cmd, f, t)
	return t, err
}

func (a *app) printChanged(s *hubv1.TunnelStatus, dryRun bool, what string) error {
	t := tunnelView(s)
	if a.output == outputTable {
		for _, w := range t.Warnings {
			a.warn("%s", w)
		}
	}
	return a.print(t, func() error {
		if a.quiet {
			_, err := fmt.Fprintln(a.Stdout, t.URL)
			return err
		}
		if dryRun {
			what = "would be as below; nothing was stored"
		}
		a.say("The tunnel %s %s.\n", t.URL, what)
		return a.printTunnel(t)
	})
}

func (a *app) tunnelSet() *cobra.Command {
	f := &tunnelFlags{}
	var enabled bool
	c := &cobra.Command{
		Use: "set LABEL", Short: "Change settings of a managed tunnel; what is not named stays", Args: oneArg("LABEL"),
		Example: "  adit tunnel set app --response-timeout 5m --no-websocket\n  adit tunnel set app --origin http://10.0.0.6:3000 --disabled=false",
	}
	f.bind(c)
	c.Flags().StringArrayVar(&f.origins, "origin", nil, "the origin, as create takes it; repeatable, replaces all")
	c.Flags().StringVar(&f.hostname, "hostname", "", "another name of its own")
	c.Flags().StringVar(&f.label, "label", "", "another name below the server's domain")
	c.Flags().StringVar(&f.port, "port", "", "another public port P or range A-B")
	c.Flags().BoolVar(&f.disabled, "disabled", false, "switch it off: visitors find nothing, the name stays taken")
	c.Flags().BoolVar(&enabled, "enabled", false, "switch it on again")
	c.RunE = a.call(func(ctx context.Context, cl *client, args []string) error {
		got, err := cl.tunnels().GetTunnel(ctx, &hubv1.GetTunnelRequest{Label: args[0]})
		if err != nil {
			return err
		}
		t := got.GetTunnel().GetTunnel()
		fields, err := a.applyTunnelFlags(c, f, t)
		if err != nil {
			return err
		}
		for _, x := range []struct {
			flag, field string
			set         func() error
		}{
			{"hostname", "hostname", func() error { t.Hostname = f.hostname; return nil }},
			{"label", "label", func() error { t.Label = f.label; return nil }},
			{"port", "port", func() error { return f.applyPort(t) }},
			{"disabled", "disabled", func() error { t.Disabled = f.disabled; return nil }},
			{"enabled", "disabled", func() error { t.Disabled = !enabled; return nil }},
			{"agent", "agent", func() error { return nil }},
		} {
			if !c.Flags().Changed(x.flag) {
				continue
			}
			if err := x.set(); err != nil {
				return err
			}
			fields = append(fields, x.field)
			if x.field == "port" {
				fields = append(fields, "port_last")
			}
		}
		if len(fields) == 0 {
			return usageErrorf("nothing to change: name at least one setting, as --access public")
		}
		resp, err := cl.tunnels().UpdateTunnel(ctx, &hubv1.UpdateTunnelRequest{Label: args[0], Tunnel: t, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields},
			Agent: f.agent, Version: t.GetVersion(), DryRun: f.dryRun})
		if err != nil {
			return err
		}
		return a.printChanged(resp.GetTunnel(), f.dryRun, "is changed")
	})
	return c
}

func (a *app) tunnelDelete() *cobra.Command {
	var release bool
	c := &cobra.Command{
		Use: "delete LABEL", Short: "Delete a managed tunnel, or a declared one that nobody declares any more", Args: oneArg("LABEL"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.tunnels().DeleteTunnel(ctx, &hubv1.DeleteTunnelRequest{Label: args[0], Release: release}); err != nil {
				return err
			}
			return a.print(map[string]string{"deleted": args[0]}, func() error { a.say("The tunnel %s is deleted.", args[0]); return nil })
		}),
	}
	c.Flags().BoolVar(&release, "release", false, "give the name up at once instead of keeping it for 30 days")
	return c
}
