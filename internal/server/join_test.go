package server_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/server"
)

// people is the hub's API as the tools on its host call it.
func people(t *testing.T, dir string) hubv1connect.EdgeServiceClient {
	t.Helper()
	st, err := server.ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := hex.DecodeString(st.HubKeyHash)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(server.AdminKeyPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	client, base := hublink.NewPinnedClient(st.DialHTTPS(), [][]byte{pin})
	t.Cleanup(client.CloseIdleConnections)
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+string(bytes.TrimSpace(key)))
			return next(ctx, req)
		}
	})
	return hubv1connect.NewEdgeServiceClient(client, base, connect.WithInterceptors(auth))
}

// TestJoin: a further edge joins with a token, keeps its identity and starts from its snapshot
// while the hub is away.
func TestJoin(t *testing.T) {
	hubDir, edgeDir := t.TempDir(), t.TempDir()
	hub := start(t, settings(t, hubDir, "ADIT_ROLES=hub"))
	defer func() { stop(t, hub) }()
	edges := people(t, hubDir)
	made, err := edges.InviteEdge(t.Context(), &hubv1.InviteEdgeRequest{Name: "far"})
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "join.token")
	if err := os.WriteFile(token, []byte(made.GetToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	joined := settings(t, edgeDir, "ADIT_ROLES=edge", "ADIT_JOIN_FILE="+token, "ADIT_ADVERTISE=127.0.0.1:4443", "ADIT_DOMAIN=")
	edge := start(t, joined)
	id := edge.State().EdgeID
	if st := edge.State(); st.HubHost != "hub.localhost" || st.HubKeyHash != "" || st.HubURL != hub.State().HubURL {
		t.Errorf("server.json of the edge: %+v", st)
	}
	if _, err := os.Stat(server.AdminKeyPath(edgeDir)); err == nil {
		t.Error("an edge without the hub role has an admin.key")
	}
	waitFor(t, "the hub lists the edge", func() bool {
		list, err := edges.ListEdges(t.Context(), &hubv1.ListEdgesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.GetEdges() {
			if e.GetEdge().GetAddress().GetId() == id && e.GetState() == "online" {
				return true
			}
		}
		return false
	})
	waitFor(t, "the edge has its snapshot on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(edgeDir, "snapshot"))
		return err == nil && len(b) > 0
	})
	if b, err := os.ReadFile(filepath.Join(edgeDir, "snapshot")); err != nil || bytes.Contains(b, []byte("localhost")) {
		t.Errorf("the snapshot is not sealed: %v", err)
	}
	stop(t, edge)
	stop(t, hub)

	again := start(t, joined)
	if again.State().EdgeID != id {
		t.Errorf("the edge's identity changed: %s, was %s", again.State().EdgeID, id)
	}
	code, body := get(t, http.DefaultClient, "http://"+again.State().Admin+"/readyz")
	if code != 200 || !strings.Contains(body, "cut off from the hub") {
		t.Errorf("/readyz without the hub: %d %s", code, body)
	}
	stop(t, again)
	hub = start(t, settings(t, hubDir, "ADIT_ROLES=hub"))
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-limit:
			t.Fatal("not within 20s: " + what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
