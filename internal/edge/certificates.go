package edge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// certificate is one of the feed, parsed when it is first presented.
type certificate struct {
	res  *hubv1.Certificate
	once sync.Once
	pair *tls.Certificate
	err  error
}

// get is the parsed pair; nil when there is none yet.
func (c *certificate) get() (*tls.Certificate, error) {
	if c == nil || c.res.GetProblem() != "" || len(c.res.GetChainPem()) == 0 {
		return nil, nil
	}
	c.once.Do(func() {
		pair, err := tls.X509KeyPair(c.res.GetChainPem(), c.res.GetKeyPem())
		c.pair, c.err = &pair, err
	})
	if c.err != nil {
		return nil, c.err
	}
	return c.pair, nil
}

// certificateFor is what the feed has for a name: its own certificate, else the wildcard's.
func (v *view) certificateFor(name string) (*tls.Certificate, error) {
	if c, err := v.certificates[name].get(); c != nil || err != nil {
		return c, err
	}
	if _, parent, ok := strings.Cut(name, "."); ok {
		return v.certificates["*."+parent].get()
	}
	return nil, nil
}

// certificate answers a visitor's hello. Nil, nil makes the handshake end in unrecognized_name:
// there is no certificate (yet) for a name that is served.
func (e *Edge) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name, err := hostname.Normalize(h.ServerName)
	if err != nil {
		return nil, nil //nolint:nilerr // nobody's name
	}
	v := e.view.Load()
	if slices.Contains(h.SupportedProtos, acmez.ACMETLS1Protocol) {
		if c := v.challenges[challengeName(name)]; c != nil {
			return challengeCertificate(c)
		}
		return e.fallback(h)
	}
	c, err := v.certificateFor(name)
	if err != nil {
		e.cfg.Log.Error("the certificate from the hub does not parse", "name", name, "err", err)
	}
	if c != nil {
		return c, nil
	}
	if c, err = e.fallback(h); c != nil || err != nil {
		return c, err
	}
	if e.own[name] {
		// Agents come by WebSocket under our own names before there is a certificate, and prove
		// the edge by other means. People see that it is not trusted.
		return e.identity, nil
	}
	return nil, nil
}

func (e *Edge) fallback(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if e.cfg.Certificate == nil {
		return nil, nil
	}
	return e.cfg.Certificate(h)
}

// covers reports whether the certificate presented for serverName is also valid for host, so that
// a browser may send requests for host on the same connection.
func (e *Edge) covers(serverName, host string) bool {
	c, err := e.view.Load().certificateFor(serverName)
	if c == nil || err != nil {
		return false
	}
	leaf := c.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return false
		}
	}
	return leaf.VerifyHostname(host) == nil
}

const (
	typeTLSALPN = "tls-alpn-01"
	typeHTTP    = "http-01"
)

func challengeName(name string) string { return typeTLSALPN + "/" + name }

// challengeKey is how the edge is asked for a challenge: by name, or by token on port 80.
func challengeKey(c *hubv1.Challenge) string {
	if c.GetType() == typeTLSALPN {
		return challengeName(c.GetName())
	}
	return c.GetType() + "/" + c.GetToken()
}

func challengeCertificate(c *hubv1.Challenge) (*tls.Certificate, error) {
	return acmez.TLSALPN01ChallengeCert(acme.Challenge{
		Type: typeTLSALPN, Token: c.GetToken(), KeyAuthorization: c.GetKeyAuthorization(),
		Identifier: acme.Identifier{Type: "dns", Value: c.GetName()},
	})
}

// selfSigned makes the certificate of the edge's own name.
func selfSigned(name string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "adit edge"}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
