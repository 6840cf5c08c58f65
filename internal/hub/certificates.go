package hub

import (
	"bytes"
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// Issuer makes the certificates that edges present to visitors.
type Issuer interface {
	// Certificate returns what to present for name (an exact name or "*.x") now, issuing or
	// renewing when needed. When there is none yet it returns one with Problem set, or an error,
	// which the hub publishes as the problem. It is asked once after a start and when the name is
	// new, every minute while there is a problem or the end is near, and after
	// CertificatesChanged.
	Certificate(ctx context.Context, name string) (*hubv1.Certificate, error)
}

// SetIssuer is called before Run. Without an issuer no certificates are published.
func (h *Hub) SetIssuer(i Issuer) { h.issuer = i }

// CertificatesChanged makes the hub ask the issuer for every name again.
func (h *Hub) CertificatesChanged() {
	select {
	case h.askAgain <- struct{}{}:
	default:
	}
}

// wantedNames are the names that edges end TLS for.
func (h *Hub) wantedNames() map[string]bool {
	want := map[string]bool{h.cfg.HubHost: true}
	for _, e := range h.feed.edges() {
		for _, a := range e.GetAddress().GetAddresses() {
			if n := addressName(a); n != "" {
				want[n] = true
			}
		}
	}
	for _, t := range h.feed.tunnels() {
		if t.GetKind() == wirev1.Kind_KIND_HTTP {
			// No certificate reaches deeper than one label.
			want[strings.Replace(t.GetHostname(), "**.", "*.", 1)] = true
		}
	}
	return want
}

// certify keeps the published certificates in line with what tunnels need, until ctx ends. Each
// start asks for every name once: the issuer may be another one than before.
func (h *Hub) certify(ctx context.Context) {
	if h.issuer == nil {
		return
	}
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	asked := map[string]time.Time{}
	for {
		h.feed.mu.RLock()
		moved := h.feed.moved
		h.feed.mu.RUnlock()
		if h.Leads() {
			h.certifyOnce(ctx, asked)
		} else {
			clear(asked)
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-t.C:
		case <-h.askAgain:
			clear(asked)
		}
	}
}

func (h *Hub) certifyOnce(ctx context.Context, asked map[string]time.Time) {
	want := h.wantedNames()
	for name := range asked {
		if !want[name] {
			delete(asked, name)
		}
	}
	for name := range want {
		have := h.feed.get("certificate/" + name).GetCertificate()
		if last, ok := asked[name]; ctx.Err() != nil || ok && !h.renew(have, last) {
			continue
		}
		c, err := h.issuer.Certificate(ctx, name)
		switch {
		case err != nil:
			if ctx.Err() != nil {
				return
			}
			c = &hubv1.Certificate{Name: name, Problem: err.Error()}
		case c == nil:
			c = &hubv1.Certificate{Name: name, Problem: "there is no certificate yet"}
		}
		asked[name] = h.cfg.Now()
		if len(c.GetChainPem()) == 0 && len(have.GetChainPem()) > 0 && have.GetNotAfter().AsTime().After(h.cfg.Now()) {
			// What is there is better than nothing; the problem is shown beside it.
			c = &hubv1.Certificate{Name: name, ChainPem: have.GetChainPem(), KeyPem: have.GetKeyPem(), NotAfter: have.GetNotAfter(), Problem: c.GetProblem()}
		}
		if err := h.publish(ctx, name, have, c); err != nil && ctx.Err() == nil {
			h.log.Error("certificate not stored", "name", name, "error", err)
		}
	}
	h.unpublish(ctx, want)
}

// renew tells whether the issuer should be asked about a name that it was asked about at last.
func (h *Hub) renew(c *hubv1.Certificate, last time.Time) bool {
	now := h.cfg.Now()
	if now.Sub(last) < askInterval {
		return false
	}
	return c.GetProblem() != "" || c.GetNotAfter().AsTime().Sub(now) < renewBefore
}

// askInterval is how often the issuer is asked about a name that has a problem, or whose end is
// near.
const askInterval = time.Minute

// renewBefore is when the issuer is asked again although it has not said that anything changed.
const renewBefore = 30 * 24 * time.Hour

func (h *Hub) publish(ctx context.Context, name string, have, c *hubv1.Certificate) error {
	if have != nil && bytes.Equal(have.GetChainPem(), c.GetChainPem()) && bytes.Equal(have.GetKeyPem(), c.GetKeyPem()) && have.GetProblem() == c.GetProblem() {
		return nil
	}
	if c.GetProblem() != "" {
		h.log.Warn("certificate problem", "name", name, "problem", c.GetProblem())
	}
	row := &store.Certificate{Name: name, Chain: c.GetChainPem(), SealedKey: []byte{}, Problem: c.GetProblem()}
	if row.Chain == nil {
		row.Chain = []byte{}
	}
	if c.GetNotAfter() != nil {
		row.NotAfter = c.GetNotAfter().AsTime().UnixMilli()
	}
	if len(c.GetKeyPem()) > 0 {
		var err error
		if row.SealedKey, err = h.sealer.Seal(certPurpose(name), c.GetKeyPem()); err != nil {
			return err
		}
	}
	return h.write(ctx, func(tx *store.Tx) error {
		tx.Changed("certificate/" + name)
		return tx.PutCertificate(row)
	})
}

// unpublish removes certificates that nothing needs any more.
func (h *Hub) unpublish(ctx context.Context, want map[string]bool) {
	var gone []string
	h.feed.each("certificate", func(r *hubv1.Resource) {
		if n := r.GetCertificate().GetName(); !want[n] {
			gone = append(gone, n)
		}
	})
	if len(gone) == 0 {
		return
	}
	err := h.write(ctx, func(tx *store.Tx) error {
		for _, n := range gone {
			if err := tx.DeleteCertificate(n); err != nil {
				return err
			}
			tx.Gone("certificate/" + n)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		h.log.Error("certificates not removed", "error", err)
	}
}

func certPurpose(name string) string { return "certificate key of " + name }

// certificateResource opens the key. One that does not open is a problem of that name alone.
func (h *Hub) certificateResource(c *store.Certificate) *hubv1.Resource {
	p := &hubv1.Certificate{Name: c.Name, Problem: c.Problem}
	if c.NotAfter != 0 {
		p.NotAfter = timestamppb.New(time.UnixMilli(c.NotAfter))
	}
	if len(c.SealedKey) > 0 {
		key, err := h.sealer.Open(certPurpose(c.Name), c.SealedKey)
		if err != nil {
			h.log.Error("stored certificate key does not open", "name", c.Name, "error", err)
			p.Problem, p.NotAfter = "its stored key does not open with this secret.key", nil
		} else {
			p.ChainPem, p.KeyPem = c.Chain, key
		}
	}
	return &hubv1.Resource{Item: &hubv1.Resource_Certificate{Certificate: p}}
}
