package stack

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
)

// Domain is the base domain of every test server: names below it need no resolver.
const Domain = "localhost"

// Server is a running `adit server`.
type Server struct {
	*Process
	t testing.TB
	// Dir is the data folder; a restarted server finds everything there.
	Dir string
	// HTTPS, HTTP and Admin are the bound addresses.
	HTTPS, HTTP, Admin string
	args               []string
	env, wrap          []string
}

// ServerConfig is what differs from a plain server with both roles.
type ServerConfig struct {
	// Roles, e.g. "hub"; empty = all that exist.
	Roles string
	// Domain, if set, replaces the test domain; the edge then advertises its address.
	Domain string
	// Join is the token of a further edge.
	Join string
	// Dir, if set, is an existing data folder.
	Dir string
	// HTTPS and HTTP, if set, are the addresses to listen on; Advertise is where agents come to, if
	// that is not HTTPS.
	HTTPS, HTTP, Advertise string
	// Args and Env are added at the end.
	Args, Env []string
	// Wrap is a command line that runs the server.
	Wrap []string
	// Unstarted makes StartServer return before the server is ready.
	Unstarted bool
}

// StartServer starts a server on free ports of loopback and waits until it is ready.
func StartServer(t testing.TB, c ServerConfig) *Server {
	t.Helper()
	s := &Server{t: t, Dir: c.Dir, env: c.Env, wrap: c.Wrap}
	if s.Dir == "" {
		s.Dir = t.TempDir()
	}
	s.HTTPS, s.HTTP = c.HTTPS, c.HTTP
	if s.HTTPS == "" {
		s.HTTPS = net.JoinHostPort("127.0.0.1", fmt.Sprint(freeport.One(t)))
	}
	if s.HTTP == "" {
		s.HTTP = net.JoinHostPort("127.0.0.1", fmt.Sprint(freeport.One(t)))
	}
	s.Admin = net.JoinHostPort("127.0.0.1", fmt.Sprint(freeport.One(t)))
	s.args = []string{"server", "--data-dir", s.Dir, "--listen-https", s.HTTPS, "--listen-http", s.HTTP,
		"--listen-admin", s.Admin, "--log-format", "json", "--log-level", "debug"}
	advertise := cmp.Or(c.Advertise, s.HTTPS)
	if c.Roles != "" {
		s.args = append(s.args, "--roles", c.Roles)
	}
	if c.Join != "" {
		file := filepath.Join(s.Dir, "join.token")
		writeFile(t, file, c.Join)
		s.args = append(s.args, "--join-file", file, "--advertise", advertise)
	} else if c.Domain != "" {
		s.args = append(s.args, "--domain", c.Domain, "--advertise", advertise)
	} else {
		s.args = append(s.args, "--domain", Domain)
	}
	s.args = append(s.args, c.Args...)
	s.launch()
	if !c.Unstarted {
		s.WaitReady(20 * time.Second)
	}
	return s
}

func (s *Server) launch() {
	s.t.Helper()
	// A server.json of an earlier run must not be taken for the new one's.
	os.Remove(filepath.Join(s.Dir, "server.json"))
	s.Process = Start(s.t, Command{Name: "server", Args: s.args, Env: s.env, Wrap: s.wrap, Grace: 30 * time.Second})
}

// Restart starts the server again, on the same ports and data, after it has ended.
func (s *Server) Restart() {
	s.t.Helper()
	if s.Alive() {
		s.t.Fatal("the server still runs")
	}
	s.launch()
	s.WaitReady(20 * time.Second)
}

// WaitReady waits until all listeners are up and /readyz answers 200.
func (s *Server) WaitReady(limit time.Duration) {
	s.t.Helper()
	Eventually(s.t, limit, func() error {
		if !s.Alive() {
			s.t.Fatalf("the server ended: %s", tail(s.Log(), 20))
		}
		return ready(s.Admin)
	})
}

func ready(admin string) error {
	code, body, err := get("http://" + admin + "/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz: %d %s", code, body)
	}
	return err
}

func get(url string) (int, string, error) {
	client := http.Client{Timeout: 2 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// Port is the port of the public listener.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.HTTPS)
	return port
}

// CAFile is the root that visitors of a server with internal certificates trust.
func (s *Server) CAFile() string { return filepath.Join(s.Dir, "ca.crt") }

// Roots holds only the server's own root.
func (s *Server) Roots() *x509.CertPool {
	s.t.Helper()
	pem, err := os.ReadFile(s.CAFile())
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		s.t.Fatalf("no certificate in %s", s.CAFile())
	}
	return pool
}

// CLI runs a management command on the server's own host.
func (s *Server) CLI(args ...string) Result {
	s.t.Helper()
	return Run(s.t, nil, append(args, "--data-dir", s.Dir, "-o", "json")...)
}

// Invite is an invite token and the file that holds it.
type Invite struct{ Name, Token, File string }

// Invite creates an invite; grants are flags such as --hostname and --tcp-port.
func (s *Server) Invite(name string, grants ...string) Invite {
	s.t.Helper()
	var made struct{ Token string }
	s.CLI(append([]string{"invite", "create", "--name", name}, grants...)...).JSON(s.t, &made)
	if !strings.HasPrefix(made.Token, "adit_invite_") {
		s.t.Fatalf("invite create printed no token: %+v", made)
	}
	file := filepath.Join(s.t.TempDir(), name+".token")
	writeFile(s.t, file, made.Token)
	return Invite{Name: name, Token: made.Token, File: file}
}

// EdgeToken creates a token for further edges.
func (s *Server) EdgeToken(name string) string {
	s.t.Helper()
	var made struct{ Token string }
	s.CLI("edge", "invite", "--name", name).JSON(s.t, &made)
	return made.Token
}

// StartEdge starts a further edge of this hub and waits until the hub lists it: a token that is made
// sooner names no edge, and its agents cannot start without the hub.
func (s *Server) StartEdge(c ServerConfig) *Server {
	s.t.Helper()
	c.Roles, c.Join = "edge", s.EdgeToken("further")
	edge := StartServer(s.t, c)
	Eventually(s.t, 20*time.Second, func() error {
		var all []struct {
			State     string
			Addresses []string
		}
		s.CLI("edge", "list").JSON(s.t, &all)
		for _, e := range all {
			if e.State == "online" && slices.Contains(e.Addresses, edge.HTTPS) {
				return nil
			}
		}
		return fmt.Errorf("the hub lists %+v", all)
	})
	return edge
}

// Tunnel is what `tunnel get` says, as far as tests read it.
type Tunnel struct {
	State, Reason, Detail, URL string
	Replicas                   int
}

// Tunnel reads one tunnel; ok is false where there is none.
func (s *Server) Tunnel(label string) (Tunnel, bool) {
	s.t.Helper()
	r := s.CLI("tunnel", "get", label)
	if r.Code == 4 {
		return Tunnel{}, false
	}
	var got Tunnel
	r.JSON(s.t, &got)
	return got, true
}

// WaitOnline waits until every tunnel is served by at least that many replicas.
func (s *Server) WaitOnline(replicas int, labels ...string) {
	s.t.Helper()
	for _, label := range labels {
		Eventually(s.t, 50*time.Second, func() error {
			got, ok := s.Tunnel(label)
			if !ok {
				return fmt.Errorf("the hub knows no tunnel %s", label)
			}
			if got.State != "online" || got.Replicas < replicas {
				return fmt.Errorf("tunnel %s: %+v", label, got)
			}
			return nil
		})
	}
}

// Metric sums a metric of the admin listener over its series whose labels hold every part.
func (s *Server) Metric(name string, parts ...string) float64 {
	s.t.Helper()
	return metric(s.t, s.Admin, name, parts)
}

func metric(t testing.TB, admin, name string, parts []string) float64 {
	t.Helper()
	code, body, err := get("http://" + admin + "/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("/metrics: %d %v", code, err)
	}
	var sum float64
series:
	for line := range strings.Lines(body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok {
			series, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		if base, _, _ := strings.Cut(series, "{"); base != name {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(series, part) {
				continue series
			}
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); err != nil {
			t.Fatalf("metric line %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// Client is an HTTP client that reaches every name at this server and trusts only its root.
func (s *Server) Client(protocols ...string) *http.Client {
	s.t.Helper()
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
		TLSClientConfig: &tls.Config{RootCAs: s.Roots()},
		Protocols:       new(http.Protocols),
	}
	for _, p := range protocols {
		switch p {
		case "h1":
			tr.Protocols.SetHTTP1(true)
		case "h2":
			tr.Protocols.SetHTTP2(true)
		default:
			s.t.Fatalf("unknown protocol %q", p)
		}
	}
	if len(protocols) == 0 {
		tr.Protocols.SetHTTP1(true)
		tr.Protocols.SetHTTP2(true)
	}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 60 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// URL is the public address of a host of this server.
func (s *Server) URL(host, path string) string { return "https://" + host + ":" + s.Port() + path }

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
