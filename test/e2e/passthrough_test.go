package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// selfSigned writes a certificate and key for names into a folder of the test.
func selfSigned(t *testing.T, names ...string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", keyDER)
	return certFile, keyFile
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestOpenSSLPassthrough has TLS end at `openssl s_server`, beside names that end at the edge.
func TestOpenSSLPassthrough(t *testing.T) {
	openssl := need.Program(t, "openssl")[0]
	cert, key := selfSigned(t, "p.example.test", "q.example.test")
	addr := loopback(freeport.One(t))
	origin := stack.Start(t, stack.Command{Name: "s_server", Path: openssl,
		Args: []string{"s_server", "-accept", addr, "-cert", cert, "-key", key, "-www", "-alpn", "http/1.1"}})
	origin.WaitLog(10*time.Second, "ACCEPT")
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{
		stack.Passthrough("p.example.test", addr),
		stack.HTTP("t.example.test", "http://"+serveHTTP(t, app(), false)),
	}})
	client := func(host string, extra ...string) string {
		args := append([]string{"s_client", "-connect", r.HTTPS, "-servername", host, "-verify_return_error", "-ign_eof"}, extra...)
		out, err := try(t, strings.NewReader("GET / HTTP/1.0\r\nHost: "+host+"\r\n\r\n"), openssl, args...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", host, err, out)
		}
		return out
	}
	t.Run("D16 a passthrough name reaches s_server with the origin's certificate", func(t *testing.T) {
		out := client("p.example.test", "-CAfile", cert)
		if !strings.Contains(out, "s_server -accept") || !strings.Contains(out, "Verify return code: 0 (ok)") {
			t.Fatalf("s_client printed\n%s", out)
		}
	})
	t.Run("D16 a small hello and a post-quantum one", func(t *testing.T) {
		client("p.example.test", "-CAfile", cert, "-groups", "X25519")
		if _, err := try(t, nil, openssl, "s_client", "-groups", "X25519MLKEM768", "-help"); err == nil {
			out, err := try(t, strings.NewReader("GET / HTTP/1.0\r\n\r\n"), openssl, "s_client", "-connect", r.HTTPS,
				"-servername", "p.example.test", "-CAfile", cert, "-groups", "X25519MLKEM768:X25519", "-ign_eof")
			if err != nil && !strings.Contains(out, "unknown group") && !strings.Contains(out, "Call to SSL_CONF_cmd") {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	})
	t.Run("D16 a terminated name on the same port shows the edge's certificate", func(t *testing.T) {
		out := client("t.example.test", "-CAfile", r.CAFile(), "-alpn", "http/1.1")
		if !strings.Contains(out, "Verify return code: 0 (ok)") {
			t.Fatalf("s_client printed\n%s", out)
		}
	})
	t.Run("D16 an unknown name and no name get unrecognized_name", func(t *testing.T) {
		for _, args := range [][]string{{"-servername", "nobody.example.test"}, {"-noservername"}} {
			out, err := try(t, nil, openssl, append([]string{"s_client", "-connect", r.HTTPS}, args...)...)
			if err == nil || !strings.Contains(strings.ToLower(out), "unrecognized name") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
	t.Run("certificates of the internal CA are P-256 and verify with curl", func(t *testing.T) {
		curl := need.Program(t, "curl")[0]
		out := run(t, nil, curl, "-sS", "--fail", "--cacert", r.CAFile(), "--resolve", "t.example.test:"+r.Port()+":127.0.0.1",
			r.URL("t.example.test", "/hello"))
		if !strings.Contains(out, "hello over") {
			t.Fatal(out)
		}
		conn := visit(t, r.Server, "t.example.test")
		if got := conn.ConnectionState().PeerCertificates[0]; got.PublicKeyAlgorithm != x509.ECDSA || strings.Contains(strings.Join(got.DNSNames, " "), "*") {
			t.Errorf("leaf: %v for %v", got.PublicKeyAlgorithm, got.DNSNames)
		}
	})
	t.Run("3 MB through passthrough arrive whole", func(t *testing.T) {
		pcert, pkey := selfSigned(t, "files.example.test")
		dir := t.TempDir()
		want := randomBytes(t, 3<<20)
		if err := os.WriteFile(filepath.Join(dir, "blob"), want, 0o600); err != nil {
			t.Fatal(err)
		}
		fileAddr := loopback(freeport.One(t))
		stack.Start(t, stack.Command{Name: "s_server -HTTP", Path: openssl, Dir: dir,
			Args: []string{"s_server", "-accept", fileAddr, "-cert", pcert, "-key", pkey, "-WWW"}}).WaitLog(10*time.Second, "ACCEPT")
		inv := r.Invite("files", "--hostname", "files.example.test")
		stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.Passthrough("files.example.test", fileAddr)}})
		r.WaitOnline(1, "files.example.test")
		curl := need.Program(t, "curl")[0]
		got := run(t, nil, curl, "-sS", "--fail", "--http1.0", "--cacert", pcert, "--resolve", "files.example.test:"+r.Port()+":127.0.0.1",
			r.URL("files.example.test", "/blob"))
		if !bytes.Equal([]byte(got), want) {
			t.Fatalf("got %d of %d bytes, or others", len(got), len(want))
		}
	})
}
