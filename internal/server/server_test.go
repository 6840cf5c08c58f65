package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/server"
	"github.com/adit-dev/adit/internal/telemetry"
	"github.com/adit-dev/adit/test/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings are those of a server on free ports of loopback.
func settings(t *testing.T, dir string, env ...string) *config.Server {
	t.Helper()
	v, err := config.Load(config.Sources{Program: config.ForServer, Environ: append([]string{
		"ADIT_DATA_DIR=" + dir, "ADIT_DOMAIN=localhost", "ADIT_LISTEN_HTTPS=127.0.0.1:0", "ADIT_LISTEN_HTTP=127.0.0.1:0",
		"ADIT_LISTEN_ADMIN=127.0.0.1:0", "ADIT_DRAIN_TIMEOUT=5s"}, env...)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := v.Server()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, s *config.Server) *server.Server {
	t.Helper()
	srv, err := tryStart(t, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := srv.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return srv
}

func tryStart(t *testing.T, s *config.Server) (*server.Server, error) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return server.Start(t.Context(), server.Config{Settings: s, Log: log, Registry: telemetry.NewRegistry()})
}

func stop(t *testing.T, srv *server.Server) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	if err := srv.Stop(context.Background()); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// visitor reaches every name at addr and trusts only the server's own root.
func visitor(t *testing.T, dir, addr string) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(server.CAPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func TestStartAndStop(t *testing.T) {
	for _, roles := range []string{"hub,edge", "hub"} {
		t.Run(roles, func(t *testing.T) {
			dir := t.TempDir()
			began := time.Now()
			srv := start(t, settings(t, dir, "ADIT_ROLES="+roles))
			if d := time.Since(began); d > time.Second && !raceEnabled {
				t.Errorf("the first start took %s, want under a second", d)
			}
			st, err := server.ReadState(dir)
			if err != nil {
				t.Fatal(err)
			}
			if st.HTTPS != srv.State().HTTPS || st.HubKeyHash == "" || st.HubHost != "hub.localhost" || (st.EdgeID != "") != strings.Contains(roles, "edge") {
				t.Errorf("server.json: %+v", st)
			}
			if fi, err := os.Stat(server.AdminKeyPath(dir)); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("admin.key: %v %v", fi, err)
			}
			client := visitor(t, dir, st.HTTPS)
			if code, body := get(t, client, "https://hub.localhost/sign-in"); code != 200 || !strings.Contains(body, "<h1>Sign in</h1>") || !strings.Contains(body, "hub.localhost") {
				t.Errorf("hub page: %d %s", code, body)
			}
			r, err := visitor(t, dir, st.HTTP).Get("http://hub.localhost/x?y")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if want := "https://hub.localhost:" + portOf(st.HTTPS) + "/x?y"; r.StatusCode != 301 || r.Header.Get("Location") != want {
				t.Errorf("port 80: %d to %q, want %q", r.StatusCode, r.Header.Get("Location"), want)
			}
			for path, want := range map[string]string{"/healthz": "ok", "/readyz": `"ready":true`, "/metrics": "adit_build_info"} {
				if code, body := get(t, http.DefaultClient, "http://"+st.Admin+path); code != 200 || !strings.Contains(body, want) {
					t.Errorf("%s: %d %s", path, code, body)
				}
			}
			if code, _ := get(t, http.DefaultClient, "http://"+st.Admin+"/debug/pprof/"); code != 404 {
				t.Errorf("profiles without --pprof: %d", code)
			}
			stop(t, srv)
			if _, err := server.ReadState(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("server.json after the end: %v", err)
			}
			// The same data folder gives the same hub.
			again := start(t, settings(t, dir, "ADIT_ROLES="+roles, "ADIT_PPROF=true"))
			if again.State().HubKeyHash != st.HubKeyHash || again.State().EdgeID != st.EdgeID {
				t.Errorf("identities changed: %+v", again.State())
			}
			if code, _ := get(t, http.DefaultClient, "http://"+again.State().Admin+"/debug/pprof/"); code != 200 {
				t.Errorf("profiles with --pprof: %d", code)
			}
			stop(t, again)
		})
	}
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// TestBusyPort: one clear line that names the flag, and nothing stays behind.
func TestBusyPort(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	// Its number is nobody's for TCP either.
	udp, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(freeport.One(t))))
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for _, c := range []struct{ name, env, flag, network, addr string }{
		{"D14 busy https port", "ADIT_LISTEN_HTTPS=", "listen-https", "tcp", tcp.Addr().String()},
		{"D14 busy UDP port", "ADIT_LISTEN_HTTPS=", "listen-https", "udp", udp.LocalAddr().String()},
		{"D14 busy http port", "ADIT_LISTEN_HTTP=", "listen-http", "tcp", tcp.Addr().String()},
		{"D14 busy admin port", "ADIT_LISTEN_ADMIN=", "listen-admin", "tcp", tcp.Addr().String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := tryStart(t, settings(t, dir, c.env+c.addr))
			var b *server.BindError
			if !errors.As(err, &b) || b.Flag != c.flag || b.Network != c.network || !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("%#v", err)
			}
			text := err.Error()
			if strings.Contains(text, "\n") || strings.Count(text, "--"+c.flag) != 2 || !strings.Contains(text, c.addr) {
				t.Errorf("%q", text)
			}
			if _, err := server.ReadState(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("server.json after a failed start: %v", err)
			}
			// D12: every port is free again.
			srv := start(t, settings(t, dir))
			stop(t, srv)
		})
	}
	t.Run("O04 a busy default admin port falls back", func(t *testing.T) {
		s := settings(t, t.TempDir(), "ADIT_LISTEN_ADMIN="+tcp.Addr().String())
		s.AdminDefault = true
		srv := start(t, s)
		defer stop(t, srv)
		if srv.State().Admin == tcp.Addr().String() || srv.State().Admin == "" {
			t.Errorf("admin at %q", srv.State().Admin)
		}
	})
}

func TestBadDataDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tryStart(t, settings(t, filepath.Join(file, "data"))); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("%v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "edge.key"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tryStart(t, settings(t, dir)); err == nil || !strings.Contains(err.Error(), "edge.key") {
		t.Errorf("%v", err)
	}
}

// TestDataDirInUse: a second server on the same folder is told who has it, and harms nothing.
func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	first := start(t, settings(t, dir))
	defer stop(t, first)
	if _, err := tryStart(t, settings(t, dir)); err == nil || !strings.Contains(err.Error(), "another server (process "+strconv.Itoa(os.Getpid())+")") {
		t.Errorf("%v", err)
	}
	if st, err := server.ReadState(dir); err != nil || st.HTTPS != first.State().HTTPS {
		t.Errorf("server.json now says %+v, %v", st, err)
	}
}

func TestBadJoin(t *testing.T) {
	for name, token := range map[string]string{"garbage": "hello", "cut": "adit_edge_AAAA"} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, t.TempDir(), "ADIT_ROLES=edge", "ADIT_JOIN="+token, "ADIT_ADVERTISE=127.0.0.1:443")
			if _, err := tryStart(t, s); err == nil || !strings.HasPrefix(err.Error(), "join: ") || strings.Contains(err.Error(), token) && len(token) > 5 {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestState(t *testing.T) {
	for in, want := range map[string]string{"0.0.0.0:443": "127.0.0.1:443", "[::]:8443": "127.0.0.1:8443", "192.0.2.1:443": "192.0.2.1:443", "[::1]:1": "[::1]:1"} {
		s := server.State{HTTPS: in}
		if got := s.DialHTTPS(); got != want {
			t.Errorf("%s is dialled at %s, want %s", in, got, want)
		}
	}
	b, err := json.Marshal(server.State{})
	if err != nil || strings.Contains(string(b), "key\"") {
		t.Errorf("%s %v", b, err)
	}
}
