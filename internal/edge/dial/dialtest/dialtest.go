// Package dialtest plays agents for tests: replicas that connect to real origins over loopback
// TCP, as an agent would, without a session in between.
package dialtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// Source is a fixed list of replicas for every tunnel.
type Source struct {
	mu       sync.Mutex
	replicas []dial.Replica
}

// NewSource returns a source of replicas.
func NewSource(rs ...*Replica) *Source {
	s := &Source{}
	s.Set(rs...)
	return s
}

// Set replaces the replicas.
func (s *Source) Set(rs ...*Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = nil
	for _, r := range rs {
		s.replicas = append(s.replicas, r)
	}
}

// Replicas implements dial.Source.
func (s *Source) Replicas(string) []dial.Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]dial.Replica(nil), s.replicas...)
}

// Replica is a fake agent.
type Replica struct {
	Name string
	// Origins are URLs by origin index.
	Origins []string
	// OpenError fails Open itself.
	OpenError func(h *wirev1.StreamHeader) *reason.Error
	// Refuse answers with a refusal instead of dialling.
	Refuse func(h *wirev1.StreamHeader) *reason.Error
	// Hold delays answers until it is closed.
	Hold <-chan struct{}

	// Gone makes the replica one that may be gone.
	Gone atomic.Bool

	// Opened counts calls of Open.
	Opened atomic.Int64

	active atomic.Int64
	mu     sync.Mutex
	last   *wirev1.StreamHeader
	lives  map[*stream]struct{}
}

// ID implements dial.Replica.
func (r *Replica) ID() string { return r.Name }

// Active implements dial.Replica.
func (r *Replica) Active() int64 { return r.active.Load() }

// Suspect implements dial.Replica.
func (r *Replica) Suspect() bool { return r.Gone.Load() }

// Last is the header of the newest stream.
func (r *Replica) Last() *wirev1.StreamHeader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// OpenFlow implements dial.Replica.
func (r *Replica) OpenFlow(*wirev1.StreamHeader, func([]byte)) (link.Flow, error) {
	return nil, reason.New(reason.Internal, reason.HopAgent, "no flows here")
}

// Kill breaks all streams, as a replica that dies does.
func (r *Replica) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.lives {
		s.killed.Store(true)
		s.Abort()
	}
}

// Open implements dial.Replica.
func (r *Replica) Open(_ context.Context, h *wirev1.StreamHeader, _ hubv1.CarrierPolicy, first []byte) (link.Outgoing, error) {
	r.Opened.Add(1)
	if r.OpenError != nil {
		if e := r.OpenError(h); e != nil {
			return nil, e
		}
	}
	s := &stream{replica: r, answered: make(chan struct{}), early: append([]byte(nil), first...)}
	r.active.Add(1)
	r.mu.Lock()
	r.last = h
	if r.lives == nil {
		r.lives = map[*stream]struct{}{}
	}
	r.lives[s] = struct{}{}
	r.mu.Unlock()
	go s.dial(h)
	return s, nil
}

var errAborted = errors.New("stream aborted")

// stream is a TCP connection to the origin; what is written before it is there is kept.
type stream struct {
	link.NoSocket
	replica  *Replica
	answered chan struct{}
	once     sync.Once
	killed   atomic.Bool // by Kill

	mu         sync.Mutex
	conn       net.Conn
	alpn       string
	err        error
	early      []byte
	writeEnded bool
	closed     bool
	readBy     time.Time
	writeBy    time.Time
}

func (s *stream) dial(h *wirev1.StreamHeader) {
	if s.replica.Hold != nil {
		<-s.replica.Hold
	}
	c, alpn, err := s.replica.connect(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(s.answered)
	if err == nil && s.closed {
		reset(c)
		err = errAborted
	}
	if err != nil {
		s.err = err
		return
	}
	s.conn, s.alpn = c, alpn
	_ = c.SetReadDeadline(s.readBy)
	_ = c.SetWriteDeadline(s.writeBy)
	if len(s.early) > 0 {
		_, s.err = c.Write(s.early)
	}
	if s.writeEnded {
		closeWrite(c)
	}
}

func (r *Replica) connect(h *wirev1.StreamHeader) (net.Conn, string, error) {
	if r.Refuse != nil {
		if e := r.Refuse(h); e != nil {
			return nil, "", e
		}
	}
	u, err := url.Parse(r.Origins[h.GetOrigin()])
	if err != nil {
		return nil, "", err
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		return nil, "", reason.Wrap(err, reason.OriginRefused, reason.HopOrigin, "dial %s", u.Host).Safe()
	}
	if u.Scheme != "https" {
		return c, "", nil
	}
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: h.GetAlpn()}) //nolint:gosec // a test origin
	if err := t.Handshake(); err != nil {
		_ = c.Close()
		return nil, "", reason.Wrap(err, reason.OriginTLS, reason.HopOrigin, "handshake with %s", u.Host).Safe()
	}
	return t, t.ConnectionState().NegotiatedProtocol, nil
}

// Answer implements link.Outgoing.
func (s *stream) Answer(ctx context.Context) (*wirev1.StreamAnswer, error) {
	select {
	case <-s.answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	return &wirev1.StreamAnswer{Alpn: s.alpn}, nil
}

func (s *stream) ready() (net.Conn, error) {
	<-s.answered
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.err
}

func (s *stream) Read(b []byte) (int, error) {
	c, err := s.ready()
	if err != nil {
		return 0, err
	}
	n, err := c.Read(b)
	if err != nil && s.killed.Load() {
		err = link.ErrAborted
	}
	return n, err
}

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, net.ErrClosed
	}
	if s.conn == nil && s.err == nil {
		s.early = append(bytes.Clone(s.early), b...)
		s.mu.Unlock()
		return len(b), nil
	}
	s.mu.Unlock()
	c, err := s.ready()
	if err != nil {
		return 0, err
	}
	return c.Write(b)
}

func (s *stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeEnded = true
	if s.conn != nil {
		closeWrite(s.conn)
	}
	return nil
}

func closeWrite(c net.Conn) {
	if cw, ok := c.(interface{ CloseWrite() error }); ok {
		_ = cw.CloseWrite()
	}
}

// reset closes a connection so that the other side sees it at once, whatever is in flight.
func reset(c net.Conn) {
	raw := c
	if t, ok := c.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = raw.Close()
}

func (s *stream) end(f func(net.Conn)) {
	s.once.Do(func() {
		s.replica.active.Add(-1)
		s.replica.mu.Lock()
		delete(s.replica.lives, s)
		s.replica.mu.Unlock()
	})
	s.mu.Lock()
	s.closed = true
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		f(c)
	}
}

func (s *stream) Close() error {
	s.end(func(c net.Conn) { _ = c.Close() })
	return nil
}

func (s *stream) ReadLoan(l *buffer.Loan) (int, error) { return buffer.Read(s, l) }

func (s *stream) Abort() { go s.end(reset) }

func (s *stream) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (s *stream) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBy = t
	if s.conn != nil {
		return s.conn.SetReadDeadline(t)
	}
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeBy = t
	if s.conn != nil {
		return s.conn.SetWriteDeadline(t)
	}
	return nil
}
