package hub

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// maxDiscovered bounds what is kept of one agent.
	maxDiscovered = 5000
	// maxDiscoveredSize bounds one service, in bytes.
	maxDiscoveredSize = 8 << 10
)

// discovered stores what an agent found. Of several replicas the last snapshot counts: they see the
// same services, or the person who looks sees those of the one that spoke last.
func (h *Hub) discovered(ctx context.Context, c *hublink.Caller, r *hubv1.DiscoveryReport) error {
	k := keyOf(c)
	puts := make([]store.DiscoveredService, 0, len(r.GetPuts()))
	for i, s := range r.GetPuts() {
		s.ExposedBy = nil
		raw, err := proto.Marshal(s)
		if err != nil {
			return err
		}
		if s.GetId() == "" || len(s.GetId()) > 512 || len(raw) > maxDiscoveredSize || slices.ContainsFunc(puts, func(p store.DiscoveredService) bool { return p.ID == s.GetId() }) {
			return invalid("discovery.puts", s.GetId(), "report each service once, in at most 8 KiB", "service %d cannot be stored", i)
		}
		puts = append(puts, store.DiscoveredService{TokenID: k.token, ID: s.GetId(), Spec: raw})
	}
	providers, err := proto.Marshal(&hubv1.DiscoveryReport{Providers: r.GetProviders()})
	if err != nil {
		return err
	}
	return h.store.Write(ctx, func(tx *store.Tx) error {
		old, err := tx.Discovery(k.token)
		none := errors.Is(err, store.ErrNotFound)
		if err != nil && !none {
			return err
		}
		if !r.GetSnapshot() && (none || old.ReplicaID != k.replica) {
			// Differences to what another replica said mean nothing.
			return nil
		}
		n := 0
		if !r.GetSnapshot() {
			if n, err = tx.DiscoveredCount(k.token); err != nil {
				return err
			}
		}
		if n+len(puts) > maxDiscovered {
			return reason.New(reason.TooLarge, reason.HopHub, "an agent may report at most %d services; exclude some with --discovery-exclude-ports", maxDiscovered)
		}
		return tx.Discover(&store.Discovery{TokenID: k.token, ReplicaID: k.replica, Providers: providers, ReportedAt: tx.Now.UnixMilli()},
			r.GetSnapshot(), puts, r.GetDeletes())
	})
}

// ListServices returns one page of what an agent discovered whose name, namespace or address
// contains the filter, with the tunnels that expose it already.
func (h *Hub) ListServices(ctx context.Context, r *hubv1.ListServicesRequest) (*hubv1.ListServicesResponse, error) {
	agent, err := h.GetAgent(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	out := &hubv1.ListServicesResponse{}
	var rows []store.DiscoveredService
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		d, err := tx.Discovery(agent.GetTokenId())
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		said := &hubv1.DiscoveryReport{}
		if err := proto.Unmarshal(d.Providers, said); err != nil {
			return err
		}
		out.Providers, out.ReportedAt = said.GetProviders(), stamp(d.ReportedAt)
		rows, err = tx.Discovered(agent.GetTokenId())
		return err
	})
	if err != nil {
		return nil, err
	}
	filter := strings.ToLower(r.GetFilter())
	var all []*hubv1.DiscoveredService
	for _, row := range rows {
		s := &hubv1.DiscoveredService{}
		if err := proto.Unmarshal(row.Spec, s); err != nil {
			return nil, err
		}
		if filter == "" || strings.Contains(strings.ToLower(s.GetName()+"\x00"+s.GetNamespace()+"\x00"+s.GetOrigin()), filter) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *hubv1.DiscoveredService) int { return strings.Compare(a.GetId(), b.GetId()) })
	if out.Services, out.NextPageToken, err = cut(all, (*hubv1.DiscoveredService).GetId, r.GetPageSize(), r.GetPageToken()); err != nil {
		return nil, err
	}
	exposed := h.exposedBy(agent.GetTokenId())
	for _, s := range out.Services {
		s.ExposedBy = exposed[originAddress(s.GetOrigin())]
	}
	return out, nil
}

// exposedBy lists the tunnels that an agent serves by the addresses of their origins.
func (h *Hub) exposedBy(token string) map[string][]string {
	out := map[string][]string{}
	for _, t := range h.feed.tunnels() {
		if !slices.Contains(t.GetTokenIds(), token) {
			continue
		}
		for _, o := range t.GetOrigins() {
			if at := originAddress(o.GetUrl()); at != "" && !slices.Contains(out[at], t.GetId()) {
				out[at] = append(out[at], t.GetId())
			}
		}
	}
	for _, ids := range out {
		slices.Sort(ids)
	}
	return out
}

// originAddress is host:port of an origin; loopback is one host however it is written.
func originAddress(origin string) string {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return ""
	}
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	switch host {
	case "localhost", "::1", "127.0.0.1":
		host = "localhost"
	}
	if port == "" {
		port = map[string]string{"https": "443", "http": "80", "h2c": "80"}[u.Scheme]
	}
	return host + " " + port
}
