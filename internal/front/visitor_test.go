package front

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func TestVisitor(t *testing.T) {
	ctx, end := WithVisitor(context.Background())
	other, _ := WithVisitor(context.Background())
	v := VisitorFrom(ctx)
	if v == nil || v.ID == VisitorFrom(other).ID || VisitorFrom(context.Background()) != nil {
		t.Fatal("visitors are not told apart")
	}
	select {
	case <-v.Done():
		t.Fatal("it ended before its connection")
	default:
	}
	end()
	end() // closing twice is what sockets do
	<-v.Done()
}

func TestVisitorEndsWithItsConnection(t *testing.T) {
	seen := make(chan *Visitor, 2)
	r := start(t, Config{}, func(_ *rig, roles *Roles) {
		roles.HTTP = http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { seen <- VisitorFrom(q.Context()) })
	})
	h1 := r.transport()
	h1.ForceAttemptHTTP2 = false
	h3 := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: r.ca.pool}, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return quic.DialAddr(ctx, r.addr, c, q)
	}}
	h2 := r.transport()
	for name, tt := range map[string]struct {
		client http.RoundTripper
		close  func()
	}{
		"HTTP/1.1": {h1, h1.CloseIdleConnections}, "HTTP/2": {h2, h2.CloseIdleConnections}, "HTTP/3": {h3, func() { _ = h3.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			get(t, tt.client, "https://q.test/")
			get(t, tt.client, "https://q.test/")
			a, b := <-seen, <-seen
			if a == nil || a != b {
				t.Fatalf("two requests of one connection are %v and %v", a, b)
			}
			select {
			case <-a.Done():
				t.Fatal("it ended before its connection")
			default:
			}
			tt.close()
			select {
			case <-a.Done():
			case <-time.After(30 * time.Second):
				t.Error("it does not end with its connection")
			}
		})
	}
}
