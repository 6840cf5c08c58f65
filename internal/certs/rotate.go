package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

const (
	// secretCANext is the CA that takes over at a time, secretCABefore the one that was replaced.
	secretCANext   = "certs/ca-next"
	secretCABefore = "certs/ca-before"
	// fromHeader and untilHeader say when, in the PEM blocks of those.
	fromHeader  = "Adit-From"
	untilHeader = "Adit-Until"
)

// successor is a CA that takes over.
type successor struct {
	bundle []byte
	key    *ecdsa.PrivateKey
	ca     *x509.Certificate
	from   time.Time
}

// RotateCA makes a new internal CA, which takes over at from. Until then ca.crt holds both, so that
// clients can import the new one; afterwards names get their certificates from it as they are renewed,
// and the old one stays in ca.crt until its last certificate has ended. It returns the new CA as PEM.
func RotateCA(ctx context.Context, store Store, from, now time.Time) ([]byte, error) {
	i := &Internal{cfg: InternalConfig{Store: store, Now: func() time.Time { return now }}}
	keyPEM, err := store.GetSecret(ctx, secretCAKey)
	if err != nil {
		return nil, fmt.Errorf("the internal CA: %w; a server with --tls internal makes it at its first start", err)
	}
	if err := i.load(ctx, keyPEM); err != nil {
		return nil, err
	}
	if i.next != nil && now.Before(i.next.from) {
		return nil, fmt.Errorf("the internal CA is being rotated: the next one takes over at %s", i.next.from.Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := selfSign(key, append([]string{}, i.ca.PermittedDNSDomains...), now)
	if err != nil {
		return nil, err
	}
	bundle, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	bundle = append(bundle, encodeCA(ca, fromHeader, from)...)
	if err := store.PutSecret(ctx, secretCANext, bundle); err != nil {
		return nil, err
	}
	return encodeCA(ca, "", time.Time{}), nil
}

// encodeCA is a CA certificate as PEM, with a time in a header.
func encodeCA(ca *x509.Certificate, header string, at time.Time) []byte {
	b := &pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}
	if header != "" {
		b.Headers = map[string]string{header: at.UTC().Format(time.RFC3339)}
	}
	return pem.EncodeToMemory(b)
}

// decodeCA finds the CA certificate in PEM, with the time in its header.
func decodeCA(data []byte, header string) (*x509.Certificate, time.Time, error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, time.Time{}, fmt.Errorf("the internal CA's certificate: is not PEM")
		}
		if data = rest; block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("the internal CA's certificate: %w", err)
		}
		at, _ := time.Parse(time.RFC3339, block.Headers[header])
		return ca, at, nil
	}
}

func (i *Internal) optional(ctx context.Context, name string) ([]byte, error) {
	data, err := i.cfg.Store.GetSecret(ctx, name)
	if missing(err) {
		return nil, nil
	}
	return data, err
}

// load reads the CA, the next one and the one before. The secret of the key may hold the certificate
// too: that counts while the other one is of another key.
func (i *Internal) load(ctx context.Context, keyPEM []byte) error {
	var err error
	if i.key, err = parseKey(keyPEM); err != nil {
		return fmt.Errorf("the internal CA's key: %w", err)
	}
	caPEM, err := i.optional(ctx, secretCACert)
	if err != nil {
		return fmt.Errorf("read the internal CA: %w", err)
	}
	i.ca, i.next, i.before = nil, nil, nil
	for _, data := range [][]byte{caPEM, keyPEM} {
		if ca, _, err := decodeCA(data, ""); err == nil && i.key.PublicKey.Equal(ca.PublicKey) {
			i.ca = ca
			break
		}
	}
	next, err := i.optional(ctx, secretCANext)
	if err != nil {
		return err
	}
	if next != nil {
		s := &successor{bundle: next}
		if s.key, err = parseKey(next); err != nil {
			return fmt.Errorf("the next internal CA's key: %w", err)
		}
		if s.ca, s.from, err = decodeCA(next, fromHeader); err != nil {
			return err
		}
		if !s.key.Equal(i.key) { // else it has taken over
			i.next = s
		}
	}
	before, err := i.optional(ctx, secretCABefore)
	if err != nil || before == nil {
		return err
	}
	ca, until, err := decodeCA(before, untilHeader)
	if err == nil && i.cfg.Now().Before(until) {
		i.before = ca
	}
	return err
}

// takeOver makes the next CA the one that issues, when its time has come. A crash between its steps
// leaves the old one or the new one.
func (i *Internal) takeOver(ctx context.Context) error {
	if i.next == nil || i.cfg.Now().Before(i.next.from) {
		return nil
	}
	s := i.next
	if i.ca != nil {
		if err := i.cfg.Store.PutSecret(ctx, secretCABefore, encodeCA(i.ca, untilHeader, i.cfg.Now().Add(leafLife))); err != nil {
			return err
		}
	}
	if err := i.cfg.Store.PutSecret(ctx, secretCAKey, s.bundle); err != nil {
		return err
	}
	i.before, i.key, i.ca, i.next = i.ca, s.key, s.ca, nil
	clear(i.leaves)
	if err := i.cfg.Store.PutSecret(ctx, secretCACert, i.pem()); err != nil {
		return err
	}
	i.cfg.Log.Warn("a new internal CA has taken over", "sha256", i.fingerprint())
	return i.writeFile()
}

// roots are what clients should trust: the CA, the next one and, while it has certificates, the one
// before.
func (i *Internal) roots() []byte {
	out := [][]byte{i.pem()}
	if i.next != nil {
		out = append(out, encodeCA(i.next.ca, "", time.Time{}))
	}
	if i.before != nil {
		out = append(out, encodeCA(i.before, "", time.Time{}))
	}
	return bytes.Join(out, nil)
}
