package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/server"
	"github.com/adit-dev/adit/internal/telemetry"
)

const (
	demoDomain = "localhost"
	demoSecure = "secure.localhost"
	// demoStart is how long everything may take to come up.
	demoStart = 30 * time.Second
)

// demoFlags are those of `adit demo`.
type demoFlags struct {
	once                    bool
	https, http, admin      string
	echoPort                int
	logLevel                string
	httpsSet, httpSet, echo bool
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use: "demo [ORIGIN]", Short: "Run the whole system on this machine, with sample services",
		Long: `Run a server and an agent on loopback, in one process, with four tunnels: a web page,
TLS passthrough, TCP and UDP. With ORIGIN (a port, host:port or URL) that service is
exposed instead of the sample page. Nothing outside this machine is touched.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.httpsSet, f.httpSet, f.echo = cmd.Flags().Changed("listen-https"), cmd.Flags().Changed("listen-http"), cmd.Flags().Changed("echo-port")
			d := &demo{app: a, flags: f, host: "hello." + demoDomain}
			if len(args) == 1 {
				u, err := parseOrigin(args[0])
				if err != nil {
					return usageError(err)
				}
				if u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c" {
					return usageErrorf("%q is not a web service; the demo exposes http, https and h2c", args[0])
				}
				d.host, d.origin = "app."+demoDomain, u.String()
			}
			if cmd.Flags().Changed("data-dir") {
				d.dir = cmd.Flags().Lookup("data-dir").Value.String()
			}
			return d.run(cmd.Context())
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.once, "once", false, "make one request through each public address and exit")
	fl.StringVar(&f.https, "listen-https", "127.0.0.1:8443", "address for TLS and QUIC")
	fl.StringVar(&f.http, "listen-http", "127.0.0.1:8080", "address for plain HTTP")
	fl.StringVar(&f.admin, "listen-admin", "127.0.0.1:0", "address for /metrics, /healthz and /readyz")
	fl.IntVar(&f.echoPort, "echo-port", 8007, "public port of the TCP and UDP echo")
	fl.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
	return c
}

// demo is one run of the demonstration.
type demo struct {
	app   *app
	flags demoFlags
	// dir is the data folder; a temporary one is removed at the end.
	dir string
	// host and origin are the web tunnel; origin is the sample's when empty.
	host, origin string
	echoPort     int

	log    *slog.Logger
	server *server.Server
	sample *samples
}

// publicWeb is a public address of the demo.
func (d *demo) url(host string) string {
	return "https://" + net.JoinHostPort(host, portText(d.server.State().HTTPS))
}

func portText(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

func (d *demo) run(parent context.Context) (err error) {
	ctx, forced, stop := lifetime(parent)
	defer stop()
	log := telemetry.NewLog(telemetry.LogConfig{Level: d.flags.logLevel, Format: "text", Output: d.app.Stderr})
	defer log.Close()
	d.log = log.Logger
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "adit-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	}
	if err := d.chooseEchoPort(); err != nil {
		return startFailure(err)
	}
	if err := d.startServer(ctx); err != nil {
		return startFailure(err)
	}
	defer func() {
		stopCtx, cancel := untilForced(forced)
		defer cancel()
		err = errors.Join(err, d.server.Stop(stopCtx))
	}()
	if err := d.startSamples(ctx); err != nil {
		return err
	}
	defer d.sample.close()
	return d.withAgent(ctx, forced)
}

// chooseEchoPort finds out whether the echo port is free, so that a busy one names its flag.
func (d *demo) chooseEchoPort() error {
	d.echoPort = d.flags.echoPort
	if d.flags.once && !d.flags.echo {
		d.echoPort = 0
	}
	var busy error
	for range 20 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(d.echoPort))
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			return server.NewBindError("echo-port", "tcp", addr, err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		tcp.Close()
		if err == nil {
			udp.Close()
			d.echoPort = tcp.Addr().(*net.TCPAddr).Port
			return nil
		}
		busy = server.NewBindError("echo-port", "udp", addr, err)
		if d.echoPort != 0 {
			break
		}
	}
	return busy
}

func (d *demo) startServer(ctx context.Context) error {
	f := d.flags
	if f.once {
		if !f.httpsSet {
			f.https = "127.0.0.1:0"
		}
		if !f.httpSet {
			f.http = "127.0.0.1:0"
		}
	}
	v, err := config.Load(config.Sources{Program: config.ForServer, Environ: []string{
		"ADIT_DATA_DIR=" + d.dir, "ADIT_DOMAIN=" + demoDomain, "ADIT_LISTEN_HTTPS=" + f.https, "ADIT_LISTEN_HTTP=" + f.http,
		"ADIT_LISTEN_ADMIN=" + f.admin, "ADIT_TLS=internal", "ADIT_DRAIN_TIMEOUT=2s",
	}})
	if err != nil {
		return usageError(err)
	}
	settings, err := v.Server()
	if err != nil {
		return usageError(err)
	}
	d.server, err = server.Start(ctx, server.Config{Settings: settings, Log: d.log, Registry: telemetry.NewRegistry()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, demoStart)
	defer cancel()
	if err := d.server.WaitReady(ctx); err != nil {
		return errors.Join(fmt.Errorf("the server did not become ready: %w", err), d.server.Stop(ctx))
	}
	return nil
}

func (d *demo) startSamples(ctx context.Context) error {
	leaf, err := d.server.Issue(ctx, demoSecure)
	if err != nil {
		return err
	}
	if leaf.GetProblem() != "" {
		return fmt.Errorf("certificate for %s: %s", demoSecure, leaf.GetProblem())
	}
	cert, err := tls.X509KeyPair(leaf.GetChainPem(), leaf.GetKeyPem())
	if err != nil {
		return fmt.Errorf("certificate for %s: %w", demoSecure, err)
	}
	d.sample, err = startSamples(cert, d.log)
	if err != nil {
		return err
	}
	if d.origin == "" {
		d.origin = "http://" + d.sample.web.Addr().String()
	}
	return nil
}

// invite makes the agent's token with the hub's API, as a person would, and writes it to a file.
func (d *demo) invite(ctx context.Context, c *client) (string, error) {
	ports := []*hubv1.PortRange{{First: uint32(d.echoPort), Last: uint32(d.echoPort)}}
	req := &hubv1.CreateInviteRequest{Name: "demo", Hostnames: []string{d.host, demoSecure}, TcpPorts: ports, UdpPorts: ports}
	resp, err := c.invites().CreateInvite(ctx, req)
	if connect.CodeOf(err) == connect.CodeAlreadyExists {
		// The data folder of an earlier demo: its tenant owns the names.
		req.Name, req.Tenant = "demo-"+time.Now().Format("20060102-150405.000"), "demo"
		resp, err = c.invites().CreateInvite(ctx, req)
	}
	if err != nil {
		return "", fmt.Errorf("create the invite: %w", err)
	}
	path := filepath.Join(d.dir, "agent.token")
	return path, os.WriteFile(path, []byte(resp.GetToken()+"\n"), 0o600)
}

func (d *demo) lists() config.ServiceLists {
	type entry map[string]any
	text := func(list ...entry) string {
		b, _ := json.Marshal(list)
		return string(b)
	}
	return config.ServiceLists{
		Services: text(entry{"hostname": d.host, "origin": d.origin, "tls_mode": "terminate", "access": "public"},
			entry{"hostname": demoSecure, "origin": d.sample.secure.Addr().String(), "tls_mode": "passthrough"}),
		TCP: text(entry{"name": "echo-tcp", "origin": d.sample.tcp.Addr().String(), "listen_port": d.echoPort}),
		UDP: text(entry{"name": "echo-udp", "origin": d.sample.udp.LocalAddr().String(), "listen_port": d.echoPort}),
	}
}

// withAgent runs the agent and, once all four tunnels are up, the checks or the wait for Ctrl-C.
func (d *demo) withAgent(ctx context.Context, forced <-chan struct{}) error {
	c, err := localClient(d.dir)
	if err != nil {
		return err
	}
	defer c.close()
	tokenFile, err := d.invite(ctx, c)
	if err != nil {
		return err
	}
	g, runCtx := errgroup.WithContext(ctx)
	runCtx, cancel := context.WithCancel(runCtx)
	defer cancel()
	g.Go(func() error {
		defer cancel()
		return runToEnd(runCtx, forced, agent.Config{TokenFile: tokenFile, Services: d.lists(), GracePeriod: 2 * time.Second,
			FailFast: true, HostName: "demo", Software: telemetry.Version(), Log: d.log, Registry: telemetry.NewRegistry()})
	})
	g.Go(func() error {
		defer cancel()
		if err := waitOnline(runCtx, c, 4); err != nil {
			return err
		}
		if d.flags.once {
			return d.check(runCtx)
		}
		link, err := signInLink(runCtx, c)
		if err != nil {
			return fmt.Errorf("make a sign-in link: %w", err)
		}
		d.tell(link)
		<-runCtx.Done()
		return nil
	})
	err = g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// waitOnline waits until the hub has heard from the edge that want tunnels are served.
func waitOnline(ctx context.Context, c *client, want int) error {
	ctx, cancel := context.WithTimeout(ctx, demoStart)
	defer cancel()
	var last []tunnel
	for {
		all, err := c.allTunnels(ctx, "")
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil {
			last = all
		}
		online := 0
		for _, t := range last {
			if t.State == "online" {
				online++
			}
		}
		if online >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d tunnels are up%s: %w", online, want, notOnline(last), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func notOnline(all []tunnel) string {
	s := ""
	for _, t := range all {
		if t.State != "online" {
			s += fmt.Sprintf("; %s is %s %s %s", t.label(), t.State, t.Reason, t.Detail)
		}
	}
	return s
}

// tell prints the addresses with command lines that work as they stand.
func (d *demo) tell(signIn string) {
	out, port, ca := d.app.Stdout, portText(d.server.State().HTTPS), server.CAPath(d.dir)
	fmt.Fprintf(out, "Adit runs on this machine: a server, an agent and four tunnels.\n\n")
	for _, t := range []struct{ host, what string }{{d.host, "HTTP, TLS ends at the edge"}, {demoSecure, "TLS passthrough, TLS ends at the origin"}} {
		fmt.Fprintf(out, "%s   (%s)\n  curl --cacert %s --resolve %s:%s:127.0.0.1 %s/\n\n", d.url(t.host), t.what, ca, t.host, port, d.url(t.host))
	}
	fmt.Fprintf(out, "tcp://127.0.0.1:%d   (TCP echo)\n  (echo hello; sleep 1) | curl -s -m 2 telnet://127.0.0.1:%d\n\n", d.echoPort, d.echoPort)
	fmt.Fprintf(out, "udp://127.0.0.1:%d   (UDP echo)\n  bash -c 'exec 3<>/dev/udp/127.0.0.1/%d; echo hello >&3; timeout 1 head -n 1 <&3'\n\n", d.echoPort, d.echoPort)
	fmt.Fprintf(out, "To open the pages in a browser, trust %s there (it is valid for this demo only).\n", ca)
	fmt.Fprintf(out, "The dashboard is at %s; this link signs you in, once:\n  %s\n", d.server.State().HubURL, signIn)
	fmt.Fprintf(out, "The tunnels as the hub sees them:\n  adit tunnel list --data-dir %s\n\nCtrl-C ends it.\n", d.dir)
}
