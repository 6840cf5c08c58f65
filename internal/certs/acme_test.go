package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/test/need"
)

// pebble is an ACME directory with a resolver that answers 127.0.0.1 for every name, and the two
// ports where it looks for challenges.
type pebble struct {
	directory, caFile string
	dns               string // management address of the resolver
	tlsPort, httpPort net.Listener
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// freeAddr is an address nobody listens on now, TCP and UDP.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		u, err := net.ListenPacket("udp", addr)
		_ = l.Close()
		if err == nil {
			_ = u.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

func start(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), out.String())
		}
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startPebble(t *testing.T, eab bool) *pebble {
	t.Helper()
	programs := need.Program(t, "pebble", "pebble-challtestsrv")
	dir := t.TempDir()
	p := &pebble{caFile: filepath.Join(dir, "ca.crt"), tlsPort: listenLoopback(t), httpPort: listenLoopback(t)}
	ca := internal(t, InternalConfig{Domain: "example.com", Store: &memory{}, File: p.caFile})
	leaf := get(t, ca, "pebble.localhost")
	listen, management, dns := freeAddr(t), freeAddr(t), freeAddr(t)
	p.dns = freeAddr(t)
	_, port, _ := net.SplitHostPort(listen)
	p.directory = "https://pebble.localhost:" + port + "/dir"
	conf := map[string]any{
		"listenAddress": listen, "managementListenAddress": management,
		"certificate": filepath.Join(dir, "leaf.crt"), "privateKey": filepath.Join(dir, "leaf.key"),
		"httpPort": p.httpPort.Addr().(*net.TCPAddr).Port, "tlsPort": p.tlsPort.Addr().(*net.TCPAddr).Port,
		"domainBlocklist": []string{"blocked.example.com"},
		"profiles":        map[string]any{"default": map[string]any{"description": "default", "validityPeriod": 7776000}},
	}
	if eab {
		conf["externalAccountBindingRequired"] = true
		conf["externalAccountMACKeys"] = map[string]string{"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}
	}
	data, err := json.Marshal(map[string]any{"pebble": conf})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"leaf.crt": leaf.GetChainPem(), "leaf.key": leaf.GetKeyPem(), "pebble.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, nil, programs[1], "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", dns, "-management", p.dns, "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "")
	start(t, []string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "PEBBLE_AUTHZREUSE=0"}, programs[0], "-config", filepath.Join(dir, "pebble.json"), "-dnsserver", dns)
	for _, addr := range []string{listen, p.dns} {
		eventually(t, "listening on "+addr, func() bool {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
	}
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answer serves challenges as a front does, on the ports chosen.
func (p *pebble) answer(t *testing.T, a *ACME, onTLS, onHTTP bool) {
	t.Helper()
	cfg := &tls.Config{NextProtos: []string{"acme-tls/1", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if onTLS {
			return a.Challenge(h)
		}
		return nil, nil
	}}
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !onHTTP || !a.ServeChallenge(w, r) {
			http.NotFound(w, r)
		}
	})
	for l, tlsConfig := range map[net.Listener]*tls.Config{p.tlsPort: cfg, p.httpPort: nil} {
		srv := &http.Server{Handler: plain, TLSConfig: tlsConfig, ErrorLog: log.New(io.Discard, "", 0)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if tlsConfig != nil {
				_ = srv.ServeTLS(l, "", "")
			} else {
				_ = srv.Serve(l)
			}
		}()
		t.Cleanup(func() {
			_ = srv.Close()
			<-done
		})
	}
}

func (p *pebble) acme(t *testing.T, cfg ACMEConfig) *ACME {
	t.Helper()
	// The transport resolves the directory's name by itself: *.localhost is loopback everywhere here.
	cfg.Directory, cfg.CAFile, cfg.Dir = p.directory, p.caFile, filepath.Join(t.TempDir(), "acme")
	a, err := NewACME(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.speed = 600
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func issued(t *testing.T, a *ACME, name string) *hubv1.Certificate {
	t.Helper()
	var c *hubv1.Certificate
	eventually(t, "certificate for "+name, func() bool {
		c = get(t, a, name)
		return c.GetProblem() == ""
	})
	return c
}

func leafOf(t *testing.T, c *hubv1.Certificate) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(c.GetChainPem(), c.GetKeyPem())
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestACME(t *testing.T) {
	p := startPebble(t, false)
	var changes atomic.Int64
	a := p.acme(t, ACMEConfig{Email: "ops@example.com", Changed: func() { changes.Add(1) }})
	p.answer(t, a, true, true)

	t.Run("a served name gets its certificate", func(t *testing.T) {
		first := get(t, a, "a.example.com")
		if !strings.Contains(first.GetProblem(), "being ordered") {
			t.Errorf("problem %q before it is there", first.GetProblem())
		}
		leaf := leafOf(t, issued(t, a, "a.example.com"))
		if !slices.Equal(leaf.DNSNames, []string{"a.example.com"}) {
			t.Errorf("names %v", leaf.DNSNames)
		}
		if changes.Load() == 0 {
			t.Error("the hub was not told")
		}
	})
	t.Run("C07 a hello for a name without a challenge gets nothing and orders nothing", func(t *testing.T) {
		for i := range 1000 {
			cert, err := a.Challenge(&tls.ClientHelloInfo{ServerName: fmt.Sprintf("r%d.example.com", i), SupportedProtos: []string{"acme-tls/1"}})
			if cert != nil || err != nil {
				t.Fatalf("%v, %v", cert, err)
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.names) != 1 {
			t.Errorf("%d names are managed", len(a.names))
		}
	})
	t.Run("the certificate survives a restart without an order", func(t *testing.T) {
		before := issued(t, a, "a.example.com")
		cfg := a.cfg
		cfg.Directory = p.directory
		again, err := NewACME(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = again.Close() }()
		if after := get(t, again, "a.example.com"); string(after.GetChainPem()) != string(before.GetChainPem()) {
			t.Error("another certificate was ordered")
		}
	})
	t.Run("C01 one refused name is explained and holds up no other", func(t *testing.T) {
		eventually(t, "a problem in words", func() bool {
			c := get(t, a, "blocked.example.com")
			return strings.Contains(c.GetProblem(), "order failed") && strings.Contains(c.GetProblem(), "does not issue for this name")
		})
		issued(t, a, "b.example.com")
	})
	t.Run("C02 a name that is not asked for any more is let go", func(t *testing.T) {
		a.forget(time.Now().Add(time.Second))
		a.mu.Lock()
		n := len(a.names)
		a.mu.Unlock()
		if n != 0 || len(a.cache.AllMatchingCertificates("a.example.com")) != 0 {
			t.Errorf("%d names are managed", n)
		}
		issued(t, a, "a.example.com")
	})
	t.Run("wildcards are explained, not ordered", func(t *testing.T) {
		if c := get(t, a, "*.example.com"); !strings.Contains(c.GetProblem(), "proof by DNS") {
			t.Errorf("problem %q", c.GetProblem())
		}
	})
}

func TestACMEFallsBack(t *testing.T) {
	p := startPebble(t, false)
	a := p.acme(t, ACMEConfig{})
	p.answer(t, a, false, true)
	t.Run("C01 HTTP-01 where TLS-ALPN-01 is blocked", func(t *testing.T) {
		issued(t, a, "http.example.com")
	})
}

func TestACMEUnreachable(t *testing.T) {
	p := startPebble(t, false)
	a := p.acme(t, ACMEConfig{})
	p.answer(t, a, false, false)
	eventually(t, "the remedy", func() bool {
		return strings.Contains(get(t, a, "closed.example.com").GetProblem(), "further edge")
	})
	if c := get(t, a, "closed.example.com"); !strings.Contains(c.GetProblem(), "next try") {
		t.Errorf("problem %q", c.GetProblem())
	}
}

func TestACMEExternalBinding(t *testing.T) {
	p := startPebble(t, true)
	t.Run("bound", func(t *testing.T) {
		a := p.acme(t, ACMEConfig{EABKeyID: "kid-1", EABKey: "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W\n"})
		p.answer(t, a, true, false)
		issued(t, a, "eab.example.com")
	})
	t.Run("missing", func(t *testing.T) {
		a := p.acme(t, ACMEConfig{})
		eventually(t, "the remedy", func() bool {
			return strings.Contains(get(t, a, "eab.example.com").GetProblem(), "--acme-eab-kid")
		})
	})
}

func TestACMEConfig(t *testing.T) {
	for _, cfg := range []ACMEConfig{
		{Directory: "http://acme.example.com/dir"},
		{Directory: "::"},
		{CAFile: filepath.Join(t.TempDir(), "none")},
		{EABKeyID: "x"},
	} {
		if _, err := NewACME(cfg); err == nil || !strings.Contains(err.Error(), "--acme-") {
			t.Errorf("%+v: %v, want an error that names the flag", cfg, err)
		}
	}
	t.Run("no order for what cannot be public", func(t *testing.T) {
		a, err := NewACME(ACMEConfig{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Close() }()
		if c := get(t, a, "nas.home.arpa"); !strings.Contains(c.GetProblem(), "--tls internal") {
			t.Errorf("problem %q", c.GetProblem())
		}
	})
}

func TestServeChallenge(t *testing.T) {
	c := newChallenges()
	c.answers["tok"], c.hosts["tok"] = "tok.key", "a.example.com"
	for _, q := range []struct {
		host, path string
		want       bool
	}{
		{"a.example.com", challengePath + "tok", true},
		{"A.Example.com:80", challengePath + "tok", true},
		{"b.example.com", challengePath + "tok", false},
		{"a.example.com", challengePath + "other", false},
		{"a.example.com", challengePath, false},
		{"a.example.com", "/", false},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://"+q.host+q.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := &answerWriter{}
		if got := c.http(w, r); got != q.want || got && w.String() != "tok.key" {
			t.Errorf("%s%s: %v, %q", q.host, q.path, got, w.String())
		}
	}
}

type answerWriter struct{ strings.Builder }

func (w *answerWriter) Header() http.Header { return http.Header{} }
func (w *answerWriter) WriteHeader(int)     {}

var _ io.Writer = (*answerWriter)(nil)
