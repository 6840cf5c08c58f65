package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/telemetry"
)

// exposeFlags are what `adit expose` has beside the agent's settings.
type exposeFlags struct {
	label, hostname, access, auth string
	listenPort                    uint16
}

func (a *app) exposeCommand() *cobra.Command {
	var f exposeFlags
	c := &cobra.Command{
		Use: "expose ORIGIN", Short: "Give one service a public address while this command runs", Args: oneArg("ORIGIN"),
		Long: `Give one service a public address while this command runs, and show who connects.

ORIGIN is a port (3000), host:port, or a URL: http://, https:// and h2c:// are served
as HTTP, tls:// as passthrough, tcp:// and udp:// on a public port.`,
		Example: "  adit expose 3000 --label demo --access public --token-file token\n  adit expose tcp://127.0.0.1:22 --listen-port 2222 --token-file token",
		RunE: func(cmd *cobra.Command, args []string) error {
			// Lists of other services belong to an agent, not to this one tunnel.
			v, err := a.load(cmd, config.ForAgent, "")
			if err != nil {
				return err
			}
			s, err := v.Agent()
			if err != nil {
				return usageError(err)
			}
			token, err := checkToken(s.Token, s.TokenFile)
			if err != nil {
				return err
			}
			s.Lists, err = exposed(args[0], f, token)
			if err != nil {
				return usageError(err)
			}
			if v.Source("health-addr") == "default" {
				s.HealthAddr = ""
			}
			return a.runExpose(cmd.Context(), s, v.Warnings)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.label, "label", "", "name below the base domain: LABEL.<domain>")
	fl.StringVar(&f.hostname, "hostname", "", "full host name")
	fl.Uint16Var(&f.listenPort, "listen-port", 0, "public port of a tcp:// or udp:// origin (default the origin's)")
	fl.StringVar(&f.access, "access", "", "public or protected (default protected for HTTP)")
	fl.StringVar(&f.auth, "auth", "", "alias of --access: none = public, sso = protected")
	config.Bind(fl, config.ForAgent)
	for _, hidden := range []string{"services", "tcp-services", "udp-services", "config", "fail-fast"} {
		_ = fl.MarkHidden(hidden)
	}
	fl.Lookup("health-addr").DefValue = ""
	return c
}

// exposed are the service lists of one origin.
func exposed(text string, f exposeFlags, token *identity.Token) (config.ServiceLists, error) {
	var l config.ServiceLists
	u, err := parseOrigin(text)
	if err != nil {
		return l, err
	}
	access, err := f.mode()
	if err != nil {
		return l, err
	}
	entry := map[string]any{"origin": u.String()}
	if access != "" {
		entry["access"] = access
	}
	switch u.Scheme {
	case "tcp", "udp":
		if f.label != "" || f.hostname != "" {
			return l, fmt.Errorf("--label and --hostname are for HTTP and TLS; a %s origin gets a port with --listen-port", u.Scheme)
		}
		port := f.listenPort
		if port == 0 {
			n, _ := strconv.ParseUint(u.Port(), 10, 16)
			port = uint16(n)
		}
		entry["name"], entry["listen_port"], entry["origin"] = u.Scheme+"-"+strconv.Itoa(int(port)), port, u.Host
	default:
		if f.listenPort != 0 {
			return l, errors.New("--listen-port is for tcp:// and udp:// origins; HTTP and TLS share the server's port")
		}
		if entry["hostname"], err = f.host(token); err != nil {
			return l, err
		}
		entry["tls_mode"] = "terminate"
		if u.Scheme == "tls" {
			entry["tls_mode"], entry["origin"] = "passthrough", u.Host
		}
	}
	b, err := json.Marshal([]any{entry})
	switch u.Scheme {
	case "tcp":
		l.TCP = string(b)
	case "udp":
		l.UDP = string(b)
	default:
		l.Services = string(b)
	}
	return l, err
}

// parseOrigin reads a port, host:port or URL.
func parseOrigin(s string) (*url.URL, error) {
	const want = "write a port (3000), host:port, or a URL with http, https, h2c, tls, tcp or udp"
	if _, err := strconv.Atoi(s); err == nil {
		s = "http://127.0.0.1:" + s
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q is not an origin; %s", s, want)
	}
	u.Path = ""
	port := map[string]string{"http": "80", "h2c": "80", "https": "443", "tls": "443", "tcp": "", "udp": ""}
	def, ok := port[u.Scheme]
	if !ok {
		return nil, fmt.Errorf("%q is not a scheme of an origin; %s", u.Scheme, want)
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
		return nil, fmt.Errorf("%q is not an origin: ports are 1 to 65535; %s", s, want)
	}
	if u.Port() == "" {
		if def == "" {
			return nil, fmt.Errorf("%q names no port; write for example %s://%s:22", s, u.Scheme, u.Hostname())
		}
		u.Host = net.JoinHostPort(u.Hostname(), def)
	}
	return u, nil
}

func (f exposeFlags) mode() (string, error) {
	access := f.access
	switch f.auth {
	case "":
	case "none", "sso":
		alias := map[string]string{"none": "public", "sso": "protected"}[f.auth]
		if access != "" && access != alias {
			return "", fmt.Errorf("--access %s and --auth %s say different things; give one of them", access, f.auth)
		}
		access = alias
	default:
		return "", fmt.Errorf("--auth: %q is not possible; use none or sso", f.auth)
	}
	switch access {
	case "", "public", "protected":
		return access, nil
	}
	return "", fmt.Errorf("--access: %q is not possible; use public or protected", access)
}

// host is the public name: as said, or the label below the hub's domain.
func (f exposeFlags) host(token *identity.Token) (string, error) {
	switch {
	case f.label != "" && f.hostname != "":
		return "", errors.New("--label and --hostname say the same thing; give one of them")
	case f.hostname != "":
		return f.hostname, nil
	case f.label == "":
		return "", errors.New("a name is missing; give --label demo, or --hostname demo.example.com")
	case strings.Contains(f.label, "."):
		return "", fmt.Errorf("--label: %q has a dot; a full name goes into --hostname", f.label)
	}
	u, err := url.Parse(token.Body.GetHubUrl())
	if err != nil {
		return "", err
	}
	domain, ok := strings.CutPrefix(u.Hostname(), "hub.")
	if !ok {
		return "", fmt.Errorf("--label: the hub %s does not tell its base domain; use --hostname with the full name", u.Hostname())
	}
	return f.label + "." + domain, nil
}

func (a *app) runExpose(parent context.Context, s *config.Agent, warnings []string) error {
	ctx, forced, stop := lifetime(parent)
	defer stop()
	if s.LogLevel == "info" {
		// The request log takes the place of the agent's own.
		s.LogLevel = "warn"
	}
	log := telemetry.NewLog(telemetry.LogConfig{Level: s.LogLevel, Format: s.LogFormat, Output: a.Stderr})
	defer log.Close()
	for _, w := range warnings {
		log.Warn(w)
	}
	disableGSO(s.DisableUDPGSO)
	cfg := agentConfig(s)
	cfg.Log, cfg.Origin.Log = log.Logger, log.Logger
	// One tunnel: if it is refused there is nothing to wait for.
	cfg.FailFast, cfg.Withdraw, cfg.ConfigFile = true, true, ""
	show := &exposeView{app: a}
	cfg.OnStatus, cfg.OnConnection = show.status, show.connection
	err := runToEnd(ctx, forced, cfg)
	if err == nil && show.refusal != nil {
		err = show.refusal
	}
	return err
}

// exposeView is what the command prints while it runs.
type exposeView struct {
	app     *app
	up      bool
	refusal error
}

// status says the public address once it works, and when it stops working.
func (v *exposeView) status(s agent.Status) {
	if len(s.Services) == 0 {
		return
	}
	svc := s.Services[0]
	switch {
	case svc.Verdict != string(reason.OK) && svc.Verdict != string(reason.Pending) && svc.Verdict != "":
		v.refusal = reason.New(reason.Code(svc.Verdict), reason.HopHub, "%s", svc.Detail)
	case active(svc) && !v.up:
		if svc.URL == "" {
			// The edge knew the tunnel already and was faster than the hub, or the hub is away.
			svc.URL = addressOf(svc, s.Hub.URL)
		}
		v.up = true
		v.opened(svc)
	case v.up && !s.Ready && !s.Draining:
		v.up = false
		v.app.say("%s  the session with the server is gone; connecting again", time.Now().Format(time.TimeOnly))
	}
}

// addressOf is the public address of a service as the hub would spell it.
func addressOf(s agent.ServiceStatus, hubURL string) string {
	u, err := url.Parse(hubURL)
	if err != nil {
		return s.Name
	}
	switch s.Kind {
	case "tcp", "udp":
		_, port, _ := strings.Cut(s.Name, "-")
		return s.Kind + "://" + net.JoinHostPort(u.Hostname(), port)
	}
	if u.Port() == "" {
		return "https://" + s.Name
	}
	return "https://" + net.JoinHostPort(s.Name, u.Port())
}

// active reports whether at least one edge serves the service.
func active(s agent.ServiceStatus) bool {
	for _, verdict := range s.Edges {
		if verdict == string(reason.OK) {
			return true
		}
	}
	return false
}

func (v *exposeView) opened(s agent.ServiceStatus) {
	a := v.app
	if a.output != outputTable {
		_ = a.print(struct {
			URL    string `json:"url"`
			Origin string `json:"origin"`
			Access string `json:"access"`
		}{s.URL, s.Origin, s.Access}, nil)
		return
	}
	fmt.Fprintf(a.Stdout, "%s  ->  %s\n", s.URL, s.Origin)
	switch {
	case s.Access == "public":
		a.warn("everybody who knows the address gets in (access public)")
	case s.Kind == "http":
		a.warn("access is protected, and this version has no sign-in yet: visitors get 403 access_denied; to let everybody in use --access public")
	default:
		a.warn("access is protected: nobody gets in; to let everybody in use --access public")
	}
	a.say("Ctrl-C ends it. Connections:")
}

// printable keeps a visitor's text from steering the terminal, or filling it.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}

// connection prints one line per request, or per connection that is not HTTP/1.
func (v *exposeView) connection(c agent.Connection) {
	visitor := c.Visitor
	if ap, err := netip.ParseAddrPort(visitor); err == nil {
		visitor = ap.Addr().Unmap().String()
	}
	took := c.Took.Round(100 * time.Microsecond)
	what := fmt.Sprintf("%s connection to %s, dialled in %s", c.Kind, c.Origin, took)
	switch {
	case c.Err != nil:
		what = fmt.Sprintf("%s refused: %s", c.Kind, c.Err.Code)
		if c.Err.Detail != "" {
			what += ": " + c.Err.Detail
		}
	case c.Method != "":
		what = fmt.Sprintf("%d %s %s in %s", c.Status, c.Method, printable(c.Target), took)
	}
	v.app.say("%s  %-15s  %s", time.Now().Format(time.TimeOnly), visitor, what)
}
