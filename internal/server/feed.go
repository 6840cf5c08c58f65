package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/telemetry"
)

// remoteFeed is the feed of a joined edge: the machine API of its hub.
type remoteFeed struct {
	http *http.Client
	rpc  hubv1connect.MachineServiceClient
}

func newRemoteFeed(token *identity.Token, key *identity.NodeKey, log *slog.Logger) (*remoteFeed, error) {
	keys, err := token.Keys()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = key.ID()
	}
	replica := make([]byte, 16)
	if _, err := rand.Read(replica); err != nil {
		return nil, err
	}
	client, base, err := hublink.NewClient(hublink.ClientConfig{
		URL:  token.Body.GetHubUrl(),
		Pins: token.Body.GetHubPins(),
		Dialler: &opening.Dialler{Role: wirev1.Role_ROLE_EDGE, Keys: keys, Node: key, ReplicaID: replica,
			HostName: host, Software: telemetry.Version()},
		Proxy: proxyFromEnvironment,
		Log:   log,
	})
	if err != nil {
		return nil, err
	}
	return &remoteFeed{http: client, rpc: hubv1connect.NewMachineServiceClient(client, base)}, nil
}

func (f *remoteFeed) Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error {
	stream, err := f.rpc.Watch(ctx, &hubv1.WatchRequest{FromRevision: from})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if err := apply(stream.Msg()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return fmt.Errorf("the hub ended the watch")
}

func (f *remoteFeed) Report(ctx context.Context, r *hubv1.ReportRequest) error {
	_, err := f.rpc.Report(ctx, r)
	return err
}

func (f *remoteFeed) close() { f.http.CloseIdleConnections() }
