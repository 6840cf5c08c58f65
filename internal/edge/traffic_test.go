package edge

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"crypto/tls"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/proxy"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

func TestTrafficReports(t *testing.T) {
	tr := newTraffic(time.Unix(1, 0))
	known := func(string) bool { return true }
	if got := tr.reports(known); len(got) != 0 {
		t.Fatalf("nothing passed, and %v is reported", got)
	}
	tr.answered(proxy.Outcome{TunnelID: "a", Status: 200, FirstByte: 20 * time.Millisecond})
	tr.answered(proxy.Outcome{TunnelID: "a", Status: 502, FirstByte: time.Millisecond, Reason: reason.OriginRefused})
	tr.answered(proxy.Outcome{TunnelID: "a", Status: 499, Reason: reason.ClientClosed})
	first := tr.reports(known)
	if len(first) != 1 || first[0].GetRequests() != 3 || first[0].GetStatuses()[5] != 1 || first[0].GetErrors()["origin_refused"] != 1 || len(first[0].GetErrors()) != 1 {
		t.Fatalf("%v", first)
	}
	if first[0].GetLatencyCounts()[hubv1.LatencyBucket(20*time.Millisecond)] != 1 {
		t.Fatalf("%v", first[0].GetLatencyCounts())
	}
	tr.carried("a", reason.OK)
	again := tr.reports(known)
	if len(again) != 1 || !proto.Equal(again[0], first[0]) {
		t.Fatalf("an unconfirmed report changed: %v, was %v", again, first)
	}
	tr.confirmed()
	second := tr.reports(func(string) bool { return false })
	if len(second) != 1 || second[0].GetRequests() != 0 || second[0].GetConnections() != 1 || second[0].GetSeq() <= first[0].GetSeq() {
		t.Fatalf("%v", second)
	}
	if len(tr.counters) != 0 {
		t.Fatal("a tunnel that is gone is kept")
	}
}

// sum adds up what was reported of tunnels until ok of it.
func (f *hubFeed) sum(t *testing.T, what string, ok func(map[string]*hubv1.TrafficReport) bool) {
	t.Helper()
	sums := map[string]*hubv1.TrafficReport{}
	f.reported(t, what, func(r *hubv1.ReportRequest) bool {
		for _, x := range r.GetTraffic() {
			if sums[x.GetTunnelId()] == nil {
				sums[x.GetTunnelId()] = &hubv1.TrafficReport{}
			}
			sums[x.GetTunnelId()].Add(x)
		}
		return ok(sums)
	})
}

func TestTrafficOfTunnels(t *testing.T) {
	tok, ca := linktest.NewToken(t), newAuthority(t)
	port := freeport.One(t)
	hub := newHubFeed(credentialOf(tok),
		tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "app.test")),
		tunnelOf(named(newTunnel(tok, "gone", wirev1.Kind_KIND_HTTP, "http://o:1"), "gone.test")),
		tunnelOf(onPort(newTunnel(tok, "tcp", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)),
		ca.resource(t, "app.test"), ca.resource(t, "gone.test"), ca.resource(t, linktest.HubHost))
	r := startEdge(t, hub, nil).ready()
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = web.Serve(l) }()
	defer web.Close()
	startAgent(r, tok, link.CarrierQUIC, map[string]string{"web": l.Addr().String(), "tcp": echo(t)})
	for _, id := range []string{"web", "tcp"} {
		eventually(t, id+" being served", r.serves(id))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
		}}}
	get := func(host string) {
		t.Helper()
		resp, err := client.Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	hub.setDown(true) // what is counted meanwhile is not lost
	get("app.test")
	get("app.test")
	get("gone.test")
	hub.setDown(false)
	c := dialPort(t, port)
	wantEcho(t, c, "counted")
	_ = c.Close()
	hub.sum(t, "traffic", func(sums map[string]*hubv1.TrafficReport) bool {
		web, gone, tcp := sums["web"], sums["gone"], sums["tcp"]
		return web.GetRequests() == 2 && web.GetBytesOut() > 2000 && web.GetStatuses()[2] == 2 &&
			gone.GetErrors()["no_agent"] == 1 && tcp.GetConnections() == 1 && tcp.GetBytesIn() >= 7 && tcp.GetBytesOut() >= 7
	})
}
