//go:build bench && linux

package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// peer is the path of a peer's program, built from the module of the peers where it is missing
// or older than what that module pins.
func peer(t *testing.T, name, pkg string) string {
	t.Helper()
	dir := filepath.Join(need.Root(), "test", "bench", "peers")
	out := filepath.Join(need.Root(), "bin", "peers", name)
	if built, err := os.Stat(out); err == nil {
		pinned, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil && built.ModTime().After(pinned.ModTime()) {
			return out
		}
	}
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, msg)
	}
	return out
}

// frpModes are what the modes add to the transport of client and server.
var frpModes = map[string]struct{ client, server string }{
	report.FRP:  {"transport.poolCount = 0", ""},
	"frp nomux": {"transport.tcpMux = false\ntransport.poolCount = 100", "transport.tcpMux = false"},
	"frp quic":  {"transport.protocol = \"quic\"", ""},
}

// frp starts frps and frpc in one mode. The default mode also gives a target whose HTTP visitors
// speak TLS, ended by frpc, and one where HTTP goes through a TCP tunnel that parses nothing.
func frp(t *testing.T, s site, o origin, name string) []*target {
	t.Helper()
	frps, frpc := peer(t, "frps", "github.com/fatedier/frp/cmd/frps"), peer(t, "frpc", "github.com/fatedier/frp/cmd/frpc")
	dir := t.TempDir()
	mode := frpModes[name]
	bind, quic := freeport.One(t), freeport.One(t)
	tcp, udp, web, webTLS, plain := freeport.One(t), freeport.One(t), freeport.One(t), freeport.One(t), freeport.One(t)
	write(t, filepath.Join(dir, "frps.toml"), fmt.Sprintf(`
bindAddr = %q
proxyBindAddr = %q
bindPort = %d
quicBindPort = %d
vhostHTTPPort = %d
vhostHTTPSPort = %d
log.level = "warn"
transport.maxPoolCount = 200
%s
`, s.near, s.near, bind, quic, web, webTLS, mode.server))
	port := bind
	if name == "frp quic" {
		port = quic
	}
	text := fmt.Sprintf("serverAddr = %q\nserverPort = %d\nlog.level = \"warn\"\nudpPacketSize = 2048\n%s\n", s.near, port, mode.client)
	proxy := func(name, kind, to string, remote int) {
		h, p, _ := net.SplitHostPort(to)
		text += fmt.Sprintf("[[proxies]]\nname = %q\ntype = %q\nlocalIP = %q\nlocalPort = %s\n", name, kind, h, p)
		if remote > 0 {
			text += fmt.Sprintf("remotePort = %d\n", remote)
		} else {
			text += fmt.Sprintf("customDomains = [%q]\n", host)
		}
	}
	proxy("tcp", "tcp", o.tcp, tcp)
	proxy("plain", "tcp", o.http, plain)
	proxy("udp", "udp", o.udp, udp)
	proxy("web", "http", o.http, 0)
	cert := filepath.Join(dir, "web.pem")
	write(t, cert, selfSigned(t))
	text += fmt.Sprintf("[[proxies]]\nname = \"webtls\"\ntype = \"https\"\ncustomDomains = [%q]\n[proxies.plugin]\ntype = \"https2http\"\nlocalAddr = %q\ncrtPath = %q\nkeyPath = %q\n",
		host, o.http, cert, cert)
	write(t, filepath.Join(dir, "frpc.toml"), text)
	server := stack.Start(t, stack.Command{Name: name + " server", Path: frps, Args: []string{"-c", filepath.Join(dir, "frps.toml")}})
	waitListening(t, s.at(bind))
	client := stack.Start(t, stack.Command{Name: name + " client", Path: frpc, Args: []string{"-c", filepath.Join(dir, "frpc.toml")}, Wrap: s.wrap})
	waitListening(t, s.at(tcp))
	targets := []*target{{name: name, tcp: s.at(tcp), udp: s.at(udp), http: s.at(web)}}
	if name == report.FRP && !s.remote() {
		targets = append(targets,
			&target{name: "frp https2http", http: s.at(webTLS), tls: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}},
			&target{name: "frp tcp", http: s.at(plain)})
	}
	for _, g := range targets {
		g.edge, g.agent = server, client
	}
	return targets
}

func chisel(t *testing.T, s site, o origin) *target {
	t.Helper()
	bin := peer(t, "chisel", "github.com/jpillora/chisel")
	port, tcp, udp := freeport.One(t), freeport.One(t), freeport.One(t)
	server := stack.Start(t, stack.Command{Name: "chisel server", Path: bin,
		Args: []string{"server", "--host", s.near, "--port", strconv.Itoa(port), "--reverse"}})
	waitListening(t, s.at(port))
	client := stack.Start(t, stack.Command{Name: "chisel client", Path: bin, Wrap: s.wrap,
		Args: []string{"client", "http://" + s.at(port), fmt.Sprintf("R:%s:%s", s.at(tcp), o.tcp), fmt.Sprintf("R:%s:%s/udp", s.at(udp), o.udp)}})
	waitListening(t, s.at(tcp))
	return &target{name: "chisel", tcp: s.at(tcp), udp: s.at(udp), edge: server, agent: client}
}

// hops are one or two TCP relays in a row, with TLS between them or not.
type hops struct {
	number int
	sealed bool
}

func (h hops) name() string {
	name := fmt.Sprintf("haproxy %d hop", h.number)
	if h.sealed {
		name += " tls"
	}
	return name
}

// haproxy is what plain relays of the same number of hops reach on this machine. Where it is not
// installed, its rows are left out.
func haproxy(t *testing.T, o origin, h hops) []*target {
	t.Helper()
	bin := need.Find("haproxy")
	if bin == "" {
		t.Logf("%s is left out: needs the program haproxy", h.name())
		return nil
	}
	dir := t.TempDir()
	start := func(name, bind, to, server string) (*stack.Process, string) {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(freeport.One(t)))
		file := filepath.Join(dir, name+".cfg")
		write(t, file, fmt.Sprintf(`
global
  maxconn 9000
  nbthread 2
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen hop
  bind %s %s
  server next %s %s
`, at, bind, to, server))
		p := stack.Start(t, stack.Command{Name: h.name(), Path: bin, Args: []string{"-db", "-f", file}})
		waitListening(t, at)
		return p, at
	}
	g := &target{name: h.name()}
	if h.number == 1 {
		g.edge, g.tcp = start("front", "", o.tcp, "")
		return []*target{g}
	}
	bind, server := "", ""
	if h.sealed {
		cert := filepath.Join(dir, "hop.pem")
		write(t, cert, selfSigned(t))
		bind, server = "ssl crt "+cert, "ssl verify none"
	}
	var between string
	g.agent, between = start("back", bind, o.tcp, "")
	g.edge, g.tcp = start("front", "", between, server)
	return []*target{g}
}

// selfSigned is a certificate and its key in one PEM text.
func selfSigned(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func waitListening(t *testing.T, addr string) {
	t.Helper()
	stack.Eventually(t, 20*time.Second, func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}
