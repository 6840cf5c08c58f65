package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// pebble starts an ACME server that validates at the given ports, and a DNS server for it that
// answers every name with loopback. It returns flags of the server and a way to get the root.
func pebble(t *testing.T, https, plain string) (flags []string, roots func() *x509.CertPool) {
	t.Helper()
	progs := need.Program(t, "pebble", "pebble-challtestsrv")
	cert, key := selfSigned(t, "127.0.0.1", "localhost")
	acme, manage, dns := loopback(freeport.One(t)), loopback(freeport.One(t)), loopback(freeport.One(t))
	conf := map[string]any{"pebble": map[string]any{
		"listenAddress": acme, "managementListenAddress": manage, "certificate": cert, "privateKey": key,
		"httpPort": portOf(plain), "tlsPort": portOf(https), "ocspResponderURL": "", "externalAccountBindingRequired": false,
		"profiles": map[string]any{"default": map[string]any{"description": "the default", "validityPeriod": 7776000}},
	}}
	text, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pebble.json")
	writeFile(t, file, string(text))
	stack.Start(t, stack.Command{Name: "pebble-challtestsrv", Path: progs[1], Args: []string{"-dnsserver", dns, "-defaultIPv4", "127.0.0.1",
		"-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-management", loopback(freeport.One(t))}})
	stack.Start(t, stack.Command{Name: "pebble", Path: progs[0], Args: []string{"-config", file, "-dnsserver", dns},
		Env: []string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0"}}).WaitLog(15*time.Second, "ACME directory available")
	roots = func() *x509.CertPool {
		pem, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		own := x509.NewCertPool()
		own.AppendCertsFromPEM(pem)
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own}}
		defer tr.CloseIdleConnections()
		root, err := getOK(&http.Client{Transport: tr, Timeout: 5 * time.Second}, "https://"+manage+"/roots/0")
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(root))
		return pool
	}
	return []string{"--tls", "acme", "--acme-directory", "https://" + acme + "/dir", "--acme-ca-file", cert, "--acme-email", "ops@example.com"}, roots
}

func portOf(addr string) int {
	var port int
	fmt.Sscan(addr[strings.LastIndexByte(addr, ':')+1:], &port)
	return port
}

// handshake returns the leaf that a name gets, verified against roots.
func handshake(addr, name string, roots *x509.CertPool) (*x509.Certificate, error) {
	c, err := tls.Dial("tcp", addr, &tls.Config{ServerName: name, RootCAs: roots})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}

func TestACME(t *testing.T) {
	for name, off := range map[string]string{"by TLS-ALPN-01 on 443": "http", "by HTTP-01 on 80": "tls"} {
		t.Run(name, func(t *testing.T) {
			https, plain := loopback(freeport.One(t)), loopback(freeport.One(t))
			// The challenge that is not meant fails: its port leads nowhere.
			validate := map[string]string{"http": plain, "tls": https}
			validate[off] = loopback(1)
			flags, roots := pebble(t, validate["tls"], validate["http"])
			s := stack.StartServer(t, stack.ServerConfig{Domain: "adit-e2e.example", HTTPS: https, HTTP: plain, Args: flags})
			inv := s.Invite("web", "--hostname", "www.adit-e2e.example")
			stack.StartAgent(t, inv.File, stack.AgentConfig{
				Args:     []string{"--server-url", "https://" + s.HTTPS},
				Services: []stack.Service{stack.HTTP("www.adit-e2e.example", "http://"+serveHTTP(t, named("home"), false))}})
			s.WaitOnline(1, "www.adit-e2e.example")
			for _, host := range []string{"www.adit-e2e.example", "hub.adit-e2e.example"} {
				stack.Eventually(t, 50*time.Second, func() error {
					_, err := handshake(s.HTTPS, host, roots())
					return err
				})
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots(), ServerName: "www.adit-e2e.example"}}}
			defer client.CloseIdleConnections()
			req, err := http.NewRequest("GET", "https://"+s.HTTPS+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "www.adit-e2e.example"
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); string(b) != "home" {
				t.Errorf("%s %s", resp.Status, b)
			}
			if _, err := handshake(s.HTTPS, "stranger.adit-e2e.example", roots()); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("a name nobody serves: %v", err)
			}
		})
	}
}

func TestCertificateFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(names ...string) *x509.CertPool {
		cert, key := selfSigned(t, names...)
		for from, to := range map[string]string{key: names[0] + ".key", cert: names[0] + ".crt"} {
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			// Replaced as certificate tools do it: whole files.
			tmp := filepath.Join(dir, "."+to)
			writeFile(t, tmp, string(b))
			if err := os.Rename(tmp, filepath.Join(dir, to)); err != nil {
				t.Fatal(err)
			}
		}
		pool := x509.NewCertPool()
		b, _ := os.ReadFile(cert)
		pool.AppendCertsFromPEM(b)
		return pool
	}
	roots := put("files.localhost")
	put("hub.localhost")
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--tls", "files", "--cert-dir", dir}})
	inv := s.Invite("files", "--hostname", "files.localhost", "--hostname", "bare.localhost")
	origin := "http://" + serveHTTP(t, named("home"), false)
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("files.localhost", origin), stack.HTTP("bare.localhost", origin)}})
	served := func(host string, roots *x509.CertPool) {
		t.Helper()
		stack.Eventually(t, 20*time.Second, func() error {
			_, err := handshake(s.HTTPS, host, roots)
			return err
		})
	}
	served("files.localhost", roots)
	t.Run("a replaced file is served without a restart", func(t *testing.T) {
		served("files.localhost", put("files.localhost"))
	})
	t.Run("a name without a file names the file that is missing", func(t *testing.T) {
		stack.Eventually(t, 20*time.Second, func() error {
			got, _ := s.Tunnel("bare.localhost")
			if !strings.Contains(got.Detail, "bare.localhost.crt") {
				return fmt.Errorf("tunnel get says %+v", got)
			}
			return nil
		})
		served("bare.localhost", put("bare.localhost"))
	})
}
