package edge

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/test/freeport"
)

// TestIdleOriginConnectionsGiveUpLanes has as many idle origin connections as the agent may have
// lanes, and visitors of another tunnel.
func TestIdleOriginConnectionsGiveUpLanes(t *testing.T) {
	const lanes = 4
	tok, ca := linktest.NewToken(t), newAuthority(t)
	var together sync.WaitGroup
	together.Add(lanes)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/together" { // so that each needs a connection of its own
			together.Done()
			together.Wait()
		}
		fmt.Fprint(w, "fine")
	}))
	defer web.Close()
	port := freeport.One(t)
	hub := newHubFeed(credentialOf(tok), ca.resource(t, "*.q.test"),
		tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "*.q.test")),
		tunnelOf(onPort(newTunnel(tok, "tcp", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
	r := startEdge(t, hub, nil).ready()
	startAgentAt(r, r.cfg.Address, tok, link.CarrierTLS, map[string]string{"web": web.Listener.Addr().String(), "tcp": echo(t)},
		func(c *link.ConnectorConfig) { c.MaxLanes = lanes })
	eventually(t, "web being served", r.serves("web"))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
	}}
	defer tr.CloseIdleConnections()
	get := func(path string) error {
		resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get("https://app.q.test" + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "fine" {
			return fmt.Errorf("%s %q, %w", resp.Status, b, err)
		}
		return nil
	}
	errs := make(chan error, lanes)
	for range lanes {
		go func() { errs <- get("/together") }()
	}
	for range lanes {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if n := r.registry.Replicas("web")[0].Active(); n != lanes {
		t.Fatalf("%d origin connections are kept, want %d", n, lanes)
	}
	start := time.Now()
	wantEcho(t, dialPort(t, port), "a visitor of another tunnel")
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it waited %v for a lane that an idle connection held", d)
	}
	if err := get("/"); err != nil { // and the first tunnel works on
		t.Error(err)
	}
}
