package server_test

import (
	"context"
	"encoding/hex"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/server"
)

// TestChecks: each check says ok for a server that works, and names problem and remedy else.
func TestChecks(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, settings(t, dir))
	edgeKey, err := identity.LoadOrCreateNodeKey(filepath.Join(dir, "edge.key"))
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, srv)
	addr := srv.State().HTTPS
	pin, err := hex.DecodeString(srv.State().HubKeyHash)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	go func() {
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			c.Close()
		}
	}()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx := t.Context()
	brief, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	for _, c := range []struct {
		name   string
		check  server.Check
		status string
		detail string
	}{
		{"TCP", server.CheckHub(ctx, addr, [][]byte{pin}), server.StatusOK, "the hub answers"},
		{"TCP by name", server.CheckHub(ctx, "hub.localhost:"+portOf(addr), [][]byte{pin}), server.StatusOK, "the hub answers"},
		{"TCP to another hub", server.CheckHub(ctx, addr, [][]byte{make([]byte, 32)}), server.StatusFail, "not the hub"},
		{"TCP to a stranger", server.CheckHub(ctx, stranger.Addr().String(), nil), server.StatusFail, "not the hub"},
		{"TCP to the edge", server.CheckEdge(ctx, addr, edgeKey.Hash()), server.StatusOK, "the edge answers"},
		{"TCP to another edge", server.CheckEdge(ctx, addr, pin), server.StatusFail, "not the edge"},
		{"TCP to nobody", server.CheckHub(ctx, "127.0.0.1:1", nil), server.StatusFail, "refused"},
		{"UDP", server.CheckUDP(ctx, addr), server.StatusOK, "QUIC answers"},
		{"UDP to nobody", server.CheckUDP(ctx, "127.0.0.1:1"), server.StatusWarn, "no QUIC answer"},
		{"UDP to somebody silent", server.CheckUDP(brief, silent.LocalAddr().String()), server.StatusWarn, "timeout"},
		{"DNS of an address", server.CheckDNS(ctx, "192.0.2.1"), server.StatusOK, "address"},
		{"DNS below localhost", server.CheckDNS(ctx, "hub.localhost"), server.StatusOK, "this machine"},
		{"DNS of nothing", server.CheckDNS(ctx, "nothing.invalid"), server.StatusFail, ""},
		{"DNS of a wildcard", server.CheckWildcardDNS(ctx, "nothing.invalid"), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.status != "" && c.check.Status != c.status || !strings.Contains(c.check.Detail, c.detail) {
				t.Errorf("%+v", c.check)
			}
			if c.check.Status != server.StatusOK && c.check.Remedy == "" {
				t.Errorf("no remedy: %+v", c.check)
			}
		})
	}
	if m := srv.Missing(ctx); m != nil {
		t.Errorf("a server that cannot be public misses %+v", m)
	}
}
