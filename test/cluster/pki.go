package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is the authority of one cluster, in a folder.
type pki struct {
	dir  string
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	root []byte
}

// newPKI makes the authority and the key that signs tokens of service accounts.
func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	p := &pki{dir: dir, ca: ca, key: key, root: encode("CERTIFICATE", der)}
	// The API server wants RSA here, to say so in the tokens' headers as every client expects.
	tokens, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	if err := p.save("ca", der, key); err != nil {
		return nil, err
	}
	return p, os.WriteFile(filepath.Join(dir, "sa.key"), encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(tokens)), 0o600)
}

// server makes NAME.crt and NAME.key for a server at the given addresses and names.
func (p *pki) server(name string, ips []net.IP, dns ...string) error {
	_, _, err := p.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: ips, DNSNames: dns, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// client makes NAME.kubeconfig for a user of the API, with NAME.crt and NAME.key beside it.
func (p *pki) client(name, server, user string, groups ...string) error {
	crt, key, err := p.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	b64 := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: user, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
`, server, b64(p.root), b64(crt), b64(key))
	return os.WriteFile(filepath.Join(p.dir, name+".kubeconfig"), []byte(text), 0o600)
}

func (p *pki) issue(name string, c *x509.Certificate) (crt, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, err
	}
	c.NotBefore, c.NotAfter, c.KeyUsage = p.ca.NotBefore, p.ca.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, c, p.ca, &k.PublicKey, p.key)
	if err != nil {
		return nil, nil, err
	}
	if err := p.save(name, der, k); err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8), err
}

func (p *pki) save(name string, der []byte, key crypto.PrivateKey) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, name+".crt"), encode("CERTIFICATE", der), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, name+".key"), encode("PRIVATE KEY", pkcs8), 0o600)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
