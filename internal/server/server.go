// Package server wires the roles of one server process: listeners, hub, edge, certificates and
// the admin listener.
package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpproxy"
	"golang.org/x/sync/errgroup"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/edge"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hub/dashboard"
	"github.com/adit-dev/adit/internal/hub/rpc"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/telemetry"
)

// Config is what a server needs beside its settings.
type Config struct {
	Settings *config.Server
	Log      *slog.Logger
	Registry *prometheus.Registry
}

// Server is one running server.
type Server struct {
	cfg   *config.Server
	log   *slog.Logger
	reg   *prometheus.Registry
	state State

	lock  *os.File
	front *front.Front
	admin *admin
	// Hub role; nil without.
	hub   *hub.Hub
	link  *hublink.Server
	certs *certificates
	// Edge role; nil without.
	edge    *edge.Edge
	edgeKey *identity.NodeKey
	feed    *remoteFeed

	draining atomic.Bool
	cancel   context.CancelFunc
	tasks    *errgroup.Group
	failed   <-chan struct{}
}

// Start binds every listener, starts the roles and writes server.json. Everything is undone
// when it fails.
func Start(ctx context.Context, cfg Config) (s *Server, err error) {
	s = &Server{cfg: cfg.Settings, log: cfg.Log, reg: cfg.Registry}
	defer func() {
		if err != nil {
			_ = s.undo() // why the start failed says more
			s = nil
		}
	}()
	if err := os.MkdirAll(s.cfg.DataDir, 0o700); err != nil {
		return s, fmt.Errorf("data-dir: %w; create it for this user, or choose another with --data-dir", err)
	}
	if s.lock, err = lockDataDir(s.cfg.DataDir); err != nil {
		return s, err
	}
	if err := s.listen(ctx); err != nil {
		return s, err
	}
	handler, err := s.startHub(ctx)
	if err != nil {
		return s, err
	}
	if err := s.startEdge(handler); err != nil {
		return s, err
	}
	s.run(ctx, s.roles(handler))
	if err := s.state.write(s.cfg.DataDir); err != nil {
		return s, fmt.Errorf("data-dir: %w; make room or choose another with --data-dir", err)
	}
	return s, nil
}

// State is what server.json says.
func (s *Server) State() State { return s.state }

// Done is closed when the server cannot go on; Stop tells why.
func (s *Server) Done() <-chan struct{} { return s.failed }

// CAFingerprint is that of the internal CA, or empty.
func (s *Server) CAFingerprint() string {
	if s.certs == nil {
		return ""
	}
	return s.certs.fingerprint()
}

// Issue asks this hub's certificate source for name.
func (s *Server) Issue(ctx context.Context, name string) (*hubv1.Certificate, error) {
	if s.certs == nil {
		return nil, errors.New("this server has no hub role, so it issues no certificates")
	}
	return s.certs.source.Certificate(ctx, name)
}

func (s *Server) listen(ctx context.Context) error {
	c := s.cfg
	s.state = State{Version: telemetry.Version(), PID: os.Getpid(), Roles: c.Roles, Domain: c.Domain, HubHost: c.HubHost}
	reset := [32]byte{}
	if c.Edge() {
		key, err := identity.LoadOrCreateNodeKey(filepath.Join(c.DataDir, "edge.key"))
		if err != nil {
			return err
		}
		s.edgeKey, s.state.EdgeID, reset = key, key.ID(), key.Derive("stateless reset v1")
	}
	fc := front.Config{ListenHTTPS: c.ListenHTTPS, ListenHTTP: c.ListenHTTP, ProxyFrom: c.ProxyProtocolFrom,
		HelloTimeout: c.HelloTimeout, HelloBytes: c.HelloMaxBytes, HeaderTimeout: c.HeaderTimeout, HeaderBytes: c.HeaderMaxBytes,
		IdleTimeout: c.IdleTimeout, MaxConns: capConnections(c.MaxConnections), MaxConnsPerAddress: c.MaxConnectionsPerAddress,
		Log: s.log, Registry: s.reg}
	if c.Edge() {
		fc.StatelessReset = &reset
	}
	f, err := front.Listen(fc)
	if err != nil {
		return frontBindError(c, err)
	}
	s.front = f
	s.state.HTTPS = f.HTTPSAddr().String()
	if host, err := netip.ParseAddrPort(s.state.DialHTTPS()); err == nil {
		s.state.ProxyHeader = slices.ContainsFunc(c.ProxyProtocolFrom, func(p netip.Prefix) bool { return p.Contains(host.Addr()) })
	}
	if f.HTTPAddr().IsValid() {
		s.state.HTTP = f.HTTPAddr().String()
	}
	if c.ListenAdmin != "" {
		ln, err := listenAdmin(ctx, c.ListenAdmin, c.AdminDefault, s.log)
		if err != nil {
			return err
		}
		s.admin = newAdmin(ln, s.reg, c.PProf, s.readiness)
		s.state.Admin = telemetry.AdminAddr(ln)
	}
	return nil
}

// frontBindError names the flag whose address could not be had.
func frontBindError(c *config.Server, err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "listen" {
		return err
	}
	flag, addr := "listen-https", c.ListenHTTPS
	if op.Net == "tcp" && op.Addr != nil && c.ListenHTTP != "" && portOf(op.Addr.String()) == portOf(c.ListenHTTP) {
		flag, addr = "listen-http", c.ListenHTTP
	}
	return NewBindError(flag, op.Net, addr, err)
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// hubURL is what tokens carry: the advertised port of the hub's host, else the bound one.
func (s *Server) hubURL() string {
	port := strconv.Itoa(int(s.front.HTTPSAddr().Port()))
	for _, a := range s.cfg.Advertise {
		if h, p, err := net.SplitHostPort(a); err == nil && strings.EqualFold(h, s.cfg.HubHost) {
			port = p
			break
		}
	}
	if port == "443" {
		return "https://" + s.cfg.HubHost
	}
	return "https://" + net.JoinHostPort(s.cfg.HubHost, port)
}

// startHub opens the hub and returns what serves its host; nil without the role.
func (s *Server) startHub(ctx context.Context) (http.Handler, error) {
	c := s.cfg
	if !c.Hub() {
		return nil, nil
	}
	s.state.HubURL = s.hubURL()
	h, err := hub.New(ctx, hub.Config{DataDir: c.DataDir, DatabaseURL: c.DatabaseURL, SecretKeyFile: c.SecretKeyFile,
		Domain: c.Domain, HubHost: c.HubHost, URL: s.state.HubURL, TCPPorts: ports(c.TCPPorts), UDPPorts: ports(c.UDPPorts),
		OIDC: hub.OIDCSettings{Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, ClientSecret: c.OIDCClientSecret,
			GroupsClaim: c.OIDCGroupsClaim, AdminGroup: c.OIDCAdminGroup},
		OwnPorts: s.ownPorts(), HTTPPort: s.front.HTTPAddr().Port(), Version: telemetry.Version(), Log: s.log, Registry: s.reg})
	if err != nil {
		return nil, err
	}
	s.hub = h
	s.state.HubKeyHash = hex.EncodeToString(h.Key().Hash())
	s.certs, err = newCertificates(ctx, c, h, h.CertificatesChanged, s.log)
	if err != nil {
		return nil, err
	}
	s.certs.leads = h.Leads
	h.SetIssuer(s.certs.source)
	api := rpc.New(h)
	s.link = api.Link()
	return hubHandler(api.Handler(), dashboard.New(h)), nil
}

func ports(in []config.PortRange) []*hubv1.PortRange {
	out := make([]*hubv1.PortRange, len(in))
	for i, r := range in {
		out[i] = &hubv1.PortRange{First: uint32(r.First), Last: uint32(r.Last)}
	}
	return out
}

// ownPorts are those that no tunnel may claim.
func (s *Server) ownPorts() []hub.OwnPort {
	own := []hub.OwnPort{
		{Kind: wirev1.Kind_KIND_TCP, Port: s.front.HTTPSAddr().Port()},
		{Kind: wirev1.Kind_KIND_UDP, Port: s.front.HTTPSAddr().Port()},
	}
	if a := s.front.HTTPAddr(); a.IsValid() {
		own = append(own, hub.OwnPort{Kind: wirev1.Kind_KIND_TCP, Port: a.Port()})
	}
	if a := s.admin; a != nil && a.ln.Addr().Network() == "tcp" {
		own = append(own, hub.OwnPort{Kind: wirev1.Kind_KIND_TCP, Port: uint16(a.ln.Addr().(*net.TCPAddr).Port)})
	}
	return own
}

// startEdge makes the edge with the feed of this hub or of a remote one; nothing without the role.
func (s *Server) startEdge(handler http.Handler) error {
	c := s.cfg
	if !c.Edge() {
		return nil
	}
	ec := edge.Config{Key: s.edgeKey, HubHost: c.HubHost, OwnHTTP: handler, HTTPSPort: s.front.HTTPSAddr().Port(),
		HTTPPort: s.front.HTTPAddr().Port(), ServeClear: s.front.ServeClear,
		ListenHost: listenHost(c.ListenHTTPS), Conns: s.front.Conns(), MaxConnsPerTunnel: c.MaxConnectionsPerTunnel,
		ProxyFrom: c.ProxyProtocolFrom, TrustedProxies: c.TrustedProxies, HalfClosedTimeout: c.HalfClosedTimeout,
		BodyIdleTimeout: c.BodyIdleTimeout, DialTimeout: c.OriginDialTimeout, ResponseHeaderTimeout: c.ResponseHeaderTimeout,
		MaxSnapshotAge: c.MaxSnapshotAge, Software: telemetry.Version(), Log: s.log, Registry: s.reg}
	if s.hub != nil {
		ec.Feed = s.hub.LocalFeed(s.edgeKey.Public())
		ec.Certificate, ec.Challenge = s.certs.get, s.certs.challenge
		ec.OwnNames = []string{c.HubHost}
	} else if err := s.joinHub(&ec); err != nil {
		return err
	}
	ec.Address = &wirev1.EdgeAddress{Id: s.edgeKey.ID(), Addresses: s.advertised(), KeyHash: s.edgeKey.Hash(), Region: c.Region}
	for _, a := range ec.Address.Addresses {
		host, _, err := net.SplitHostPort(a)
		if _, ipErr := netip.ParseAddr(host); err == nil && ipErr != nil && !slices.Contains(ec.OwnNames, strings.ToLower(host)) {
			ec.OwnNames = append(ec.OwnNames, strings.ToLower(host))
		}
	}
	e, err := edge.New(ec)
	if err != nil {
		return err
	}
	s.edge = e
	return nil
}

// joinHub fills in what a further edge takes from its token.
func (s *Server) joinHub(ec *edge.Config) error {
	token, err := identity.ParseToken(s.cfg.Join)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if token.Kind != identity.KindEdge {
		return fmt.Errorf("join: the token is of kind %q, an edge needs one of kind %q; create it with `adit edge invite`", token.Kind, identity.KindEdge)
	}
	u, err := url.Parse(token.Body.GetHubUrl())
	if err != nil {
		return fmt.Errorf("join: hub URL of the token: %w", err)
	}
	s.feed, err = newRemoteFeed(token, s.edgeKey, s.log)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	ec.SecretKey, err = identity.LoadOrCreateSecret(s.cfg.SecretKeyFile)
	if err != nil {
		return err
	}
	ec.Feed, ec.HubHost = s.feed, u.Hostname()
	ec.SnapshotPath = filepath.Join(s.cfg.DataDir, "snapshot")
	s.state.HubURL, s.state.HubHost = token.Body.GetHubUrl(), u.Hostname()
	return nil
}

// advertised is where agents dial this edge.
func (s *Server) advertised() []string {
	if len(s.cfg.Advertise) > 0 {
		return s.cfg.Advertise
	}
	return []string{net.JoinHostPort(s.cfg.HubHost, strconv.Itoa(int(s.front.HTTPSAddr().Port())))}
}

// listenHost is where raw ports are bound: beside the https listener.
func listenHost(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return host
}

// roles is what the front dispatches to.
func (s *Server) roles(handler http.Handler) front.Roles {
	var r front.Roles
	if s.edge != nil {
		r = s.edge.Roles()
	} else {
		r = front.Roles{
			Tunnel:      func(netip.AddrPort, string) *front.Tunnel { return nil },
			Own:         func(name string) bool { return strings.EqualFold(name, s.cfg.HubHost) },
			Certificate: s.certs.get,
			HTTP:        handler,
			PlainHTTP:   redirect(s.certs.challenge, s.front.HTTPSAddr().Port()),
		}
	}
	if s.link != nil {
		r.Protocols = append(r.Protocols, front.Protocol{ALPN: opening.ALPNHub, TLS: s.link.TLSConfig(), TCP: s.link.ServeTLS})
	}
	return r
}

// run starts what needs time. The first failure ends everything.
func (s *Server) run(ctx context.Context, roles front.Roles) {
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.tasks, ctx = errgroup.WithContext(ctx)
	s.failed = ctx.Done()
	task := func(name string, f func() error) {
		s.tasks.Go(func() error {
			if err := f(); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	if s.hub != nil {
		task("hub", func() error { return s.hub.Run(ctx) })
	}
	if s.edge != nil {
		task("edge", func() error { return s.edge.Run(ctx) })
	}
	task("listeners", func() error { return s.front.Serve(ctx, roles) })
	if s.admin != nil {
		task("admin listener", s.admin.serve)
	}
}

// storeTimeout is how long the store may take to answer before the hub says that it does not.
const storeTimeout = 2 * time.Second

func (s *Server) readiness() readiness {
	r := readiness{Ready: true, Draining: s.draining.Load()}
	if s.hub != nil {
		r.Hub = "serving"
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		if err := s.hub.Ready(ctx); err != nil {
			// Visitors of an edge need no store: only a hub without one is out of service.
			r.Hub, r.Ready = "the store does not answer", s.edge != nil
		}
	}
	if s.edge != nil {
		r.Edge = "connected"
		select {
		case <-s.edge.Ready():
			if !s.edge.Connected() {
				r.Edge = "cut off from the hub, serving the last snapshot"
			}
		default:
			r.Ready, r.Edge = false, "waiting for the first snapshot"
		}
	}
	r.Ready = r.Ready && !r.Draining
	return r
}

// WaitReady returns when the edge has a complete view, or the server failed.
func (s *Server) WaitReady(ctx context.Context) error {
	if s.edge == nil {
		return nil
	}
	select {
	case <-s.edge.Ready():
		return nil
	case <-s.failed:
		return errors.New("the server stopped before it was ready")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop drains until ctx ends, then closes everything. It returns why the server ended by itself,
// if it did.
func (s *Server) Stop(ctx context.Context) error {
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	s.drain(ctx)
	// While the lock is held: a successor writes its own.
	return errors.Join(removeState(s.cfg.DataDir), s.undo())
}

func (s *Server) drain(ctx context.Context) {
	var g errgroup.Group
	if s.edge != nil {
		g.Go(func() error { s.edge.Drain(ctx); return nil })
	}
	g.Go(func() error { return s.front.Shutdown(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		s.log.Warn("drain", "err", err)
	}
}

// closeGrace is for what must be said at the very end (HTTP/2 GOAWAY, the admin's last answer).
const closeGrace = 2 * time.Second

// undo closes what exists, in the order of dependence, and waits for it.
func (s *Server) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	var errs []error
	add := func(err error) {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if s.cancel != nil {
		s.cancel()
	}
	if s.link != nil {
		add(s.link.Close(ctx))
	}
	if s.front != nil {
		add(s.front.Close())
	}
	if s.admin != nil {
		if s.tasks == nil {
			add(s.admin.ln.Close())
		} else {
			add(s.admin.close(ctx))
		}
	}
	if s.tasks != nil {
		add(s.tasks.Wait())
	}
	if s.feed != nil {
		s.feed.close()
	}
	if s.certs != nil {
		add(s.certs.close())
	}
	if s.hub != nil {
		add(s.hub.Close())
	}
	if s.lock != nil {
		add(s.lock.Close())
	}
	return errors.Join(errs...)
}

func proxyFromEnvironment(u *url.URL) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()(u)
}
