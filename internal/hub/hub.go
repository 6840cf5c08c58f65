// Package hub is the control plane: tokens and their grants, tunnels and who declares them, the
// change feed that edges and agents watch, and what they report back.
package hub

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// agentKinds are the tokens whose replicas edges admit.
var agentKinds = []string{string(identity.KindInvite), string(identity.KindAgent), string(identity.KindKey)}

// Config is what a hub needs to know. Listeners are bound before it is made, so that URL and
// OwnPorts hold real ports.
type Config struct {
	// DataDir holds adit.db, secret.key and admin.key.
	DataDir string
	// DatabaseURL is sqlite:PATH; empty = sqlite:<DataDir>/adit.db.
	DatabaseURL string
	// SecretKeyFile seals secrets in the store; empty = <DataDir>/secret.key, made if missing.
	SecretKeyFile string
	// Domain is the base domain, HubHost the hub's name below it (or elsewhere).
	Domain, HubHost string
	// URL goes into tokens: https://<hub-host>[:port].
	URL string
	// TCPPorts and UDPPorts are public raw ports that may be granted.
	TCPPorts, UDPPorts []*hubv1.PortRange
	// OwnPorts are ports the server itself listens on; they cannot be granted.
	OwnPorts []OwnPort
	// HTTPPort is the port of the plain HTTP listener, where any host may be served in clear text
	// instead of being redirected; 0 = there is none.
	HTTPPort uint16
	// OIDC is a sign-in provider that the server's flags set; the zero value is none.
	OIDC OIDCSettings
	// MaxStoreConns caps connections to the store; 0 = 4.
	MaxStoreConns int
	// Version of the software, for status.
	Version string
	// Now is the clock; nil = time.Now.
	Now      func() time.Time
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// OwnPort is a port of the server itself. Kind is KIND_TCP or KIND_UDP.
type OwnPort struct {
	Kind wirev1.Kind
	Port uint16
}

func (c *Config) complete() error {
	var err error
	if c.Domain, err = hostname.Normalize(c.Domain); err != nil {
		return fmt.Errorf("--domain: %w", err)
	}
	if c.HubHost == "" {
		c.HubHost = "hub." + c.Domain
	}
	if c.HubHost, err = hostname.Normalize(c.HubHost); err != nil {
		return fmt.Errorf("--hub-host: %w", err)
	}
	if c.HubHost == c.Domain || hostname.Below(c.Domain, c.HubHost) {
		return fmt.Errorf("--hub-host %q: everything below it is reserved, which would leave no name for tunnels; use a name below the domain, as hub.%s", c.HubHost, c.Domain)
	}
	if u, err := url.Parse(c.URL); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("hub URL %q: want https://HOST[:PORT]", c.URL)
	}
	if c.DatabaseURL == "" {
		c.DatabaseURL = "sqlite:" + filepath.Join(c.DataDir, "adit.db")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Hub is one control plane over one store.
type Hub struct {
	cfg     Config
	log     *slog.Logger
	store   *store.Store
	sealer  *identity.Sealer
	hasher  *hasher
	badKeys badKeyCount
	key     *identity.NodeKey
	// pins are the hashes of key and, for a while after a rotation, of the one before.
	pins     [][]byte
	hostName string
	// adminHash is SHA-256 of this host's admin.key.
	adminHash [32]byte
	// signing is what edges know the hub's word by.
	signing  ed25519.PrivateKey
	issuer   Issuer
	askAgain chan struct{}
	// localEdge is true once the edge of this process has asked for the feed.
	localEdge atomic.Bool

	feed     *feed
	presence *presence
	reap     *reaper
	peers    *peers
	// happened is raised when an event is stored.
	happened    *signal
	conditions  *conditions
	traffic     *traffic
	discoveries discoveries
	polls       polls
	asks        *asks

	stopping chan struct{}
	stop     func()

	mu sync.Mutex
	// seen is when an edge's report was noted in the store.
	seen map[string]time.Time
	// noted is what the store has of the holders of enrolments, by edge.
	noted map[string]held
	// onRevoke is called with the id of each token that is revoked.
	onRevoke func(tokenID string)
}

// New opens the store, migrates it and makes what a first start needs: the hub's identity key,
// secret.key and admin.key.
func New(ctx context.Context, cfg Config) (*Hub, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	st, err := store.Open(ctx, store.Options{URL: cfg.DatabaseURL, Now: cfg.Now, MaxConns: cfg.MaxStoreConns})
	if err != nil {
		return nil, err
	}
	h := &Hub{
		cfg: cfg, log: cfg.Log, store: st, hasher: newHasher(), askAgain: make(chan struct{}, 1),
		feed: newFeed(), presence: newPresence(), reap: newReaper(),
		happened: newSignal(), conditions: newConditions(cfg.Now()), traffic: newTraffic(), asks: newAsks(cfg.DatabaseURL),
		stopping: make(chan struct{}), seen: map[string]time.Time{}, noted: map[string]held{}, onRevoke: func(string) {},
	}
	h.stop = sync.OnceFunc(func() { close(h.stopping) })
	if h.hostName, err = os.Hostname(); err != nil {
		h.hostName = "localhost"
	}
	h.peers = newPeers(&h.cfg, h.hostName)
	h.peers.leads.Store(!st.Shared())
	if st.Shared() {
		h.presence.changed = map[string]bool{}
	}
	if err := h.start(ctx); err != nil {
		_ = st.Close()
		return nil, err
	}
	return h, nil
}

func (h *Hub) start(ctx context.Context) error {
	if err := h.loadKeys(ctx); err != nil {
		return err
	}
	if err := h.loadSigningKey(ctx); err != nil {
		return err
	}
	if err := h.storeSettings(ctx); err != nil {
		return err
	}
	return h.load(ctx)
}

// Key is the hub's identity, whose hash every token pins.
func (h *Hub) Key() *identity.NodeKey { return h.key }

// Config is what the hub was made with, completed.
func (h *Hub) Config() Config { return h.cfg }

// OnRevoke sets what is called with the id of each revoked token, after the revocation is stored.
// Call it before the hub serves.
func (h *Hub) OnRevoke(f func(tokenID string)) { h.onRevoke = f }

func (h *Hub) revoked(tokenID string) {
	if h.store.Shared() {
		return // this hub hears of it as all others do: see tellRevoked
	}
	h.cut(tokenID)
}

// cut closes what a token has at this hub.
func (h *Hub) cut(tokenID string) {
	h.presence.dropToken(tokenID)
	h.reap.invalidate()
	h.onRevoke(tokenID)
}

// Run does what needs time until ctx ends: withdrawals, certificates, news of other processes.
// Watches end with it.
func (h *Hub) Run(ctx context.Context) error {
	defer h.stop()
	var wg sync.WaitGroup
	if h.store.Shared() {
		wg.Go(func() { h.every(ctx, shareInterval, "exchange with other hubs", h.exchange) })
	}
	wg.Go(func() { h.certify(ctx) })
	wg.Go(func() { h.poll(ctx) })
	wg.Go(func() { h.ticks(ctx) })
	wg.Go(func() {
		h.leaders(ctx, 5*time.Second, "holders of enrolments", func(ctx context.Context) error { return h.lostEdges(ctx, h.cfg.Now()) })
	})
	wg.Go(func() { h.leaders(ctx, conditionStep, "problems", h.observe) })
	wg.Go(func() { h.every(ctx, trafficFlush, "traffic", h.flushTraffic) })
	wg.Go(func() { h.leaders(ctx, time.Hour, "old records", h.prune) })
	wg.Go(func() { h.leaders(ctx, time.Hour, "expired accounts", h.pruneAccounts) })
	wg.Go(func() { h.sendNotices(ctx) })
	wg.Go(func() { h.leaders(ctx, forwarderCheck, "forwards", h.checkForwarders) })
	if h.asks.elsewhere {
		wg.Go(func() { h.every(ctx, askPoll, "questions to agents", h.exchangeAsks) })
	}
	wg.Wait()
	return nil
}

func (h *Hub) ticks(ctx context.Context) {
	h.every(ctx, time.Second, "withdrawals", h.tick)
}

// every calls f until ctx ends. A failure is logged when it is new, and so is its end.
func (h *Hub) every(ctx context.Context, d time.Duration, what string, f func(context.Context) error) {
	t := time.NewTicker(d)
	defer t.Stop()
	h.loop(ctx, what, f, func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		}
	})
}

// leaders is every for what one hub does for all of its database.
func (h *Hub) leaders(ctx context.Context, d time.Duration, what string, f func(context.Context) error) {
	h.every(ctx, d, what, func(ctx context.Context) error {
		if !h.Leads() {
			return nil
		}
		return f(ctx)
	})
}

// loop calls f each time that next returns true.
func (h *Hub) loop(ctx context.Context, what string, f func(context.Context) error, next func() bool) {
	last := ""
	for next() {
		err := f(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != last:
			last = err.Error()
			h.log.Error("failed, trying again", "what", what, "error", err)
		case err == nil && last != "":
			last = ""
			h.log.Info("works again", "what", what)
		}
	}
}

// Close ends watches and closes the store; call it after Run has returned and no RPC runs.
func (h *Hub) Close() error {
	h.stop()
	if h.store.Shared() {
		h.leave()
	}
	return h.store.Close()
}

// Ready tells why the store cannot be used; nil if it can.
func (h *Hub) Ready(ctx context.Context) error { return h.store.Ping(ctx) }

// Stopping is closed when watches are to end.
func (h *Hub) Stopping() <-chan struct{} { return h.stopping }

// Credential looks up a token for an opening; nil = unknown.
func (h *Hub) Credential(ctx context.Context, tokenID string) (*hubv1.Credential, error) {
	var tok *store.Token
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) { tok, err = tx.Token(tokenID); return err })
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return credentialOf(tok), nil
}

// Admit checks what an opening's proof does not: room for one more edge.
func (h *Hub) Admit(ctx context.Context, c *hublink.Caller) *reason.Error {
	if c.Role != wirev1.Role_ROLE_EDGE {
		if c.Credential.GetDisabled() {
			return reason.New(reason.Disabled, reason.HopHub, "%q is switched off; adit agents enable switches it on again", c.Credential.GetName())
		}
		return nil
	}
	e := edgeCaller{c.NodeKey, c.Credential.GetTokenId()}
	err := h.store.Read(ctx, func(tx *store.Tx) error {
		if err := notRemoved(tx, e.id()); err != nil {
			return err
		}
		edges, err := tx.Edges()
		if err != nil {
			return err
		}
		return h.edgeRoom(tx, edges, e)
	})
	if err != nil {
		return reason.Of(err, reason.HopHub)
	}
	return nil
}

// Known tells whether a replica with this node key watched lately, or still has a session.
func (h *Hub) Known(tokenID string, replica []byte, node ed25519.PublicKey) (known bool) {
	if c := h.feed.get("credential/" + tokenID).GetCredential(); c != nil {
		tokenID = ownerOf(c)
	}
	h.presence.look(func(_ map[string]*edgePresence, agents map[replicaKey]*agentPresence) {
		a := agents[replicaKey{tokenID, hex.EncodeToString(replica)}]
		known = a != nil && len(node) > 0 && a.node.Equal(node)
	})
	return known
}

// Serving notes that a replica watches; the returned function notes the end.
func (h *Hub) Serving(c *hublink.Caller) (end func()) {
	if c.Role == wirev1.Role_ROLE_EDGE {
		return func() {}
	}
	k := keyOf(c)
	var mine *agentPresence
	h.presence.agent(k, h.cfg.Now(), func(a *agentPresence) {
		mine = a
		a.watches++
		a.hostName, a.address, a.software, a.node = c.HostName, addressOf(c.Remote), c.Software, c.NodeKey
	})
	return func() { h.presence.watchEnded(k, mine, h.cfg.Now()) }
}

// WatcherOf is what a proven caller may see.
func WatcherOf(c *hublink.Caller) Watcher {
	if c.Role == wirev1.Role_ROLE_EDGE {
		return Watcher{Edge: true}
	}
	return Watcher{TokenID: ownerOf(c.Credential), ReplicaID: hex.EncodeToString(c.ReplicaID)}
}

func (h *Hub) settings() *hubv1.Resource {
	return &hubv1.Resource{Item: &hubv1.Resource_Settings{Settings: &hubv1.Settings{
		Domain: h.cfg.Domain, HubHost: h.cfg.HubHost, TcpPorts: h.cfg.TCPPorts, UdpPorts: h.cfg.UDPPorts,
		SigningKeys: [][]byte{h.signing.Public().(ed25519.PublicKey)},
	}}}
}

// storeSettings notes a change of settings since the last start, so that watches hear of it.
func (h *Hub) storeSettings(ctx context.Context) error {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(h.settings())
	if err != nil {
		return err
	}
	return h.setMeta(ctx, "settings", raw, "settings/")
}
