package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/server"
)

// doctorTarget is the server that the checks are about.
type doctorTarget struct {
	url    string
	addr   string
	pins   [][]byte
	domain string
	// edges are those a token knows.
	edges []*wirev1.EdgeAddress
	// local is true on the server's own host; state is what runs there.
	local bool
	state *server.State
}

func (a *app) doctorCommand() *cobra.Command {
	var domain, bundle string
	c := &cobra.Command{
		Use: "doctor", Short: "Name what is wrong on this machine and on the way to the server", Args: noArgs,
		Long: `Check this machine and the way to the server. With a token the server is the
token's; on a server's own host it is the one with --data-dir; otherwise --server-url.
Before the first start of a server give --domain: ports and DNS are checked for it.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd, domain, bundle) },
	}
	c.Flags().String("token", "", config.Lookup("token").Help)
	c.Flags().String("token-file", "", "file that holds what --token says; - is standard input")
	c.Flags().StringVar(&domain, "domain", "", "base domain of a server that is not running yet")
	c.Flags().StringVar(&bundle, "bundle", "", "zip file to write for whoever helps: checks, settings, state and metrics, without secrets")
	return c
}

func (a *app) doctor(cmd *cobra.Command, domain, bundle string) error {
	ctx, stop := context.WithTimeout(cmd.Context(), time.Minute)
	defer stop()
	checks, target, err := a.findTarget(cmd)
	if err != nil {
		return err
	}
	if target != nil {
		checks = append(checks, onTheWay(ctx, target)...)
		domain = target.domain
	} else {
		checks = append(checks, freePorts()...)
	}
	if domain != "" && config.CanBePublic(domain) {
		if target == nil {
			checks = append(checks, server.CheckDNS(ctx, "hub."+domain))
		}
		checks = append(checks, server.CheckWildcardDNS(ctx, domain))
	}
	checks = append(checks, machineChecks()...)
	if bundle != "" {
		var st *server.State
		if target != nil {
			st = target.state
		}
		if err := a.writeBundle(ctx, bundle, checks, st); err != nil {
			return err
		}
	}
	return a.printChecks(checks)
}

func (a *app) printChecks(checks []server.Check) error {
	failed := 0
	for _, c := range checks {
		if c.Status == server.StatusFail {
			failed++
		}
	}
	err := a.print(checks, func() error {
		for _, c := range checks {
			fmt.Fprintf(a.Stdout, "%-4s  %s: %s\n", c.Status, c.Name, c.Detail)
			if c.Remedy != "" && c.Status != server.StatusOK {
				fmt.Fprintf(a.Stdout, "      %s\n", c.Remedy)
			}
		}
		return nil
	})
	if err != nil || failed == 0 {
		return err
	}
	return failWith(exitFailed, "doctor", "", "%d of %d checks failed", failed, len(checks))
}

// findTarget looks for a server: by token, by --server-url, in the data folder. None is no error.
func (a *app) findTarget(cmd *cobra.Command) ([]server.Check, *doctorTarget, error) {
	token, source, err := a.doctorToken(cmd)
	if err != nil {
		return nil, nil, err
	}
	if token != "" {
		t, err := identity.ParseToken(token)
		if err != nil {
			return []server.Check{{Name: "token", Status: server.StatusFail, Detail: err.Error(), Remedy: "copy the token again from where it was created"}}, nil, nil //nolint:nilerr // it is what the check found
		}
		check := server.Check{Name: "token", Status: server.StatusOK, Detail: fmt.Sprintf("%s: kind %s, for %s", source, t.Kind, t.Body.GetHubUrl())}
		target := newTarget(t.Body.GetHubUrl(), t.Body.GetHubPins())
		target.edges = t.Body.GetEdges()
		return []server.Check{check}, target, nil
	}
	v, err := a.load(cmd, config.ForClient, a.loginFile())
	if err != nil {
		return nil, nil, err
	}
	c, err := v.Client()
	if err != nil {
		return nil, nil, err
	}
	if c.ServerURL != "" && !cmd.Flags().Changed("data-dir") {
		return nil, newTarget(c.ServerURL, nil), nil
	}
	st, err := server.ReadState(c.DataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []server.Check{{Name: "server", Status: server.StatusWarn, Detail: "no token, no --server-url, and no server runs with the data folder " + c.DataDir,
			Remedy: "give --token-file on an agent's host, or --data-dir on the server's"}}, nil, nil
	case err != nil:
		return []server.Check{{Name: "server", Status: server.StatusFail, Detail: err.Error(), Remedy: "run as the user that runs the server"}}, nil, nil //nolint:nilerr // it is what the check found
	}
	t := newTarget(st.HubURL, nil)
	if pin, err := hex.DecodeString(st.HubKeyHash); err == nil && len(pin) > 0 {
		t.pins, t.local = [][]byte{pin}, true
	}
	t.domain, t.state = st.Domain, st
	return []server.Check{{Name: "server", Status: server.StatusOK, Detail: fmt.Sprintf("version %s runs as process %d on %s", st.Version, st.PID, st.HTTPS)}}, t, nil
}

// doctorToken is the token as the agent's settings would find it.
func (a *app) doctorToken(cmd *cobra.Command) (token, source string, err error) {
	var env []string
	for _, e := range a.Environ {
		// Only the token counts here; a broken list is not the doctor's business.
		if name, _, _ := strings.Cut(e, "="); strings.Contains(name, "TOKEN") {
			env = append(env, e)
		}
	}
	v, err := config.Load(config.Sources{Program: config.ForAgent, Flags: tokenFlags(cmd), Environ: env, Stdin: a.Stdin})
	if err != nil {
		return "", "", usageError(err)
	}
	return v.Secret("token"), v.Source("token"), nil
}

func newTarget(hubURL string, pins [][]byte) *doctorTarget {
	t := &doctorTarget{url: hubURL, pins: pins}
	u, err := url.Parse(hubURL)
	if err != nil || u.Host == "" {
		return t
	}
	t.addr = u.Host
	if u.Port() == "" {
		t.addr = net.JoinHostPort(u.Hostname(), "443")
	}
	t.domain, _ = strings.CutPrefix(u.Hostname(), "hub.")
	if t.domain == u.Hostname() {
		t.domain = ""
	}
	return t
}

// onTheWay checks the way to the server, and its clock.
func onTheWay(ctx context.Context, t *doctorTarget) []server.Check {
	if t.addr == "" {
		return []server.Check{{Name: "server URL", Status: server.StatusFail, Detail: fmt.Sprintf("%q names no host", t.url), Remedy: "give for example --server-url https://hub.example.com"}}
	}
	host, _, _ := net.SplitHostPort(t.addr)
	dns := server.CheckDNS(ctx, host)
	out := []server.Check{dns}
	if dns.Status == server.StatusFail {
		return out
	}
	tcp := server.CheckHub(ctx, t.addr, t.pins)
	out = append(out, tcp, server.CheckUDP(ctx, t.addr))
	if tcp.Status == server.StatusOK && len(t.pins) > 0 {
		out = append(out, checkClock(ctx, t))
	}
	for _, e := range t.edges {
		for _, addr := range e.GetAddresses() {
			if addr != t.addr {
				out = append(out, server.CheckEdge(ctx, addr, e.GetKeyHash()), server.CheckUDP(ctx, addr))
			}
		}
	}
	return out
}

// checkClock compares this machine's clock with the server's.
func checkClock(ctx context.Context, t *doctorTarget) server.Check {
	c := server.Check{Name: "clock"}
	client, base := hublink.NewPinnedClient(t.addr, t.pins)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/", nil)
	if err != nil {
		return server.Check{Name: c.Name, Status: server.StatusWarn, Detail: err.Error()}
	}
	before := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return server.Check{Name: c.Name, Status: server.StatusWarn, Detail: "the server's time is not known: " + err.Error(), Remedy: "see the checks above"}
	}
	resp.Body.Close()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return server.Check{Name: c.Name, Status: server.StatusWarn, Detail: "the server told no time", Remedy: "is it an adit server?"}
	}
	return judgeClock(theirs.Sub(before.Add(time.Since(before) / 2)).Round(time.Second))
}

// judgeClock says what it means that the server's clock is ahead of this one's by off.
func judgeClock(off time.Duration) server.Check {
	c := server.Check{Name: "clock", Status: server.StatusOK, Detail: fmt.Sprintf("differs from the server's by %s", off.Abs())}
	switch {
	case off.Abs() <= 2*time.Second:
		// The answer has whole seconds only.
		c.Detail = "agrees with the server's"
	case off.Abs() > 5*time.Minute:
		c.Status = server.StatusFail
	case off.Abs() > 30*time.Second:
		c.Status = server.StatusWarn
	}
	c.Remedy = "set the clock, for example with chrony or systemd-timesyncd; certificates and expiry depend on it"
	return c
}

// freePorts checks that a server could start here.
func freePorts() []server.Check {
	var out []server.Check
	for _, p := range []struct {
		network string
		port    uint16
		flag    string
	}{{"tcp", 443, "listen-https"}, {"udp", 443, "listen-https"}, {"tcp", 80, "listen-http"}} {
		c := server.Check{Name: fmt.Sprintf("port %d/%s", p.port, p.network), Status: server.StatusOK, Detail: "is free"}
		if holder := server.PortHolder(p.network, p.port); holder != "" {
			c.Status, c.Detail = server.StatusWarn, holder+" has it"
			c.Remedy = fmt.Sprintf("a server here needs another address (--%s), or that program must let go of the port", p.flag)
		}
		out = append(out, c)
	}
	return out
}

func readKernel(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
