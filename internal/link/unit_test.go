package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
)

func TestChoose(t *testing.T) {
	const (
		auto       = hubv1.CarrierPolicy_CARRIER_POLICY_AUTO
		latency    = hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY
		throughput = hubv1.CarrierPolicy_CARRIER_POLICY_THROUGHPUT
		raw        = hubv1.CarrierPolicy_CARRIER_POLICY_RAW
		unset      = hubv1.CarrierPolicy_CARRIER_POLICY_UNSPECIFIED
		tcp        = wirev1.Kind_KIND_TCP
		http       = wirev1.Kind_KIND_HTTP
		udp        = wirev1.Kind_KIND_UDP
		none       = wirev1.Class_CLASS_UNSPECIFIED
		inter      = wirev1.Class_CLASS_INTERACTIVE
		bulk       = wirev1.Class_CLASS_BULK
	)
	q, idle := offer{quic: true, lanes: true}, offer{quic: true, idle: 2, lanes: true}
	for _, c := range []struct {
		policy hubv1.CarrierPolicy
		kind   wirev1.Kind
		class  wirev1.Class
		o      offer
		want   ride
	}{
		{auto, tcp, bulk, offer{}, rideNone},
		{auto, tcp, bulk, q, rideQUICAndAsk},
		{auto, tcp, none, q, rideQUICAndAsk},
		{unset, tcp, bulk, idle, rideLane},
		{raw, tcp, bulk, idle, rideLane},
		{auto, http, inter, idle, rideQUIC},
		{auto, http, bulk, idle, rideLane},
		{auto, udp, none, idle, rideQUIC},
		{latency, tcp, bulk, idle, rideQUIC},
		{throughput, http, inter, idle, rideLane},
		{throughput, http, inter, q, rideQUICAndAsk},
		{throughput, tcp, bulk, offer{quic: true}, rideQUIC},
		{latency, tcp, bulk, offer{tcp: true, lanes: true}, rideWait},
		{auto, http, inter, offer{tcp: true, idle: 1, lanes: true}, rideLane},
	} {
		if got := choose(c.policy, c.kind, c.class, c.o); got != c.want {
			t.Errorf("%v %v %v %+v: %d, want %d", c.policy, c.kind, c.class, c.o, got, c.want)
		}
	}
}

func TestDemand(t *testing.T) {
	now := time.Unix(1000, 0)
	d := demand{window: time.Minute}
	at := func(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }
	if n := d.target(100, at(0)); n != 1 {
		t.Fatalf("idle: %d", n)
	}
	d.note(16, at(1))
	if n := d.target(100, at(1)); n != 16+1+2 {
		t.Fatalf("in use: %d", n)
	}
	d.note(2, at(2))
	for _, s := range []float64{2, 30, 50} {
		if n := d.target(100, at(s)); n != 19 {
			t.Fatalf("after %v s of pause: %d", s, n)
		}
	}
	if n := d.target(100, at(75)); n != 1 {
		t.Fatalf("after more than a minute: %d", n)
	}
	d.note(500, at(80))
	if n := d.target(100, at(80)); n != 100 {
		t.Fatalf("limit: %d", n)
	}
	if n := d.target(100, at(1e6)); n != 1 {
		t.Fatalf("after a long time: %d", n)
	}
	if n := d.target(0, at(1e6)); n != 0 {
		t.Fatalf("none allowed: %d", n)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{min: time.Second, max: time.Minute}
	ceiling := time.Second
	for range 100 {
		if d := b.next(); d <= 0 || d > ceiling {
			t.Fatalf("pause %v, ceiling %v", d, ceiling)
		}
		ceiling = min(2*ceiling, time.Minute)
	}
	b.reset()
	if d := b.next(); d > time.Second {
		t.Fatalf("after a reset: %v", d)
	}
}

// noOwner is a pair's owner in tests without sessions.
type noOwner struct{}

func (noOwner) control(*session, *wirev1.Control) {}
func (noOwner) incoming(*session, rawStream)      {}
func (noOwner) ended(*session)                    {}
func (noOwner) handler() Handler                  { return nil }

// lanePair makes the two ends of a lane.
func lanePair(t testing.TB) (client, server *lane) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *tls.Conn, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		s := tls.Server(WrapTCP(raw), &tls.Config{Certificates: []tls.Certificate{key.Certificate()}, DynamicRecordSizingDisabled: true})
		_ = s.HandshakeContext(context.Background())
		accepted <- s
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(WrapTCP(raw), &tls.Config{InsecureSkipVerify: true, DynamicRecordSizingDisabled: true})
	if err := c.HandshakeContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	client, server = newLane(1, c), newLane(1, <-accepted)
	t.Cleanup(func() { client.destroy(false); server.destroy(false) })
	return client, server
}

func testPair() *pair {
	return newPair(noOwner{}, slog.New(slog.DiscardHandler), defaultTiming(), edgeMetrics(nil))
}

// TestLaneReuse runs streams one after the other over one lane: nothing of one leaks into the
// next, and an end that is late does not harm it.
func TestLaneReuse(t *testing.T) {
	a, b := lanePair(t)
	pa, pb := testPair(), testPair()
	for i := range 50 {
		freeA, freeB := make(chan bool, 1), make(chan bool, 1)
		sa := newLaneStream(pa, a, func(_ *lane, clean bool) { freeA <- clean })
		sb := newLaneStream(pb, b, func(_ *lane, clean bool) { freeB <- clean })
		want := bytes.Repeat([]byte{byte(i)}, i*5_000)
		go func() {
			_, _ = sa.Write(want)
			_ = sa.CloseWrite()
		}()
		got, err := io.ReadAll(sb)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("stream %d: %d of %d bytes, %v", i, len(got), len(want), err)
		}
		if err := sb.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := sa.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("end: %v", err)
		}
		if !<-freeA || !<-freeB {
			t.Fatal("a clean end did not free the lane")
		}
		// A stream that ended is deaf to what comes after it.
		sa.Abort()
		_ = sb.Close()
		_ = sa.SetDeadline(time.Unix(1, 0))
		if _, err := sa.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("write after the end: %v", err)
		}
		if _, err := sb.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("read after the end: %v", err)
		}
	}
	if n := pa.active.Load() + pb.active.Load(); n != 0 {
		t.Fatalf("%d streams active", n)
	}
}

// TestLaneFrameLimit sends a length over the limit.
func TestLaneFrameLimit(t *testing.T) {
	a, b := lanePair(t)
	if _, err := a.conn.Write([]byte{0x00, 0x02, 0x00, 0x01}); err != nil {
		t.Fatal(err)
	}
	sb := newLaneStream(testPair(), b, func(*lane, bool) {})
	if _, err := sb.Read(make([]byte, 1)); err == nil {
		t.Fatal("a frame over the limit was taken")
	}
	if _, err := sb.Write([]byte("x")); err == nil {
		t.Fatal("the lane lives on")
	}
}

// TestLaneUnclean ends the connection in the middle of a stream.
func TestLaneUnclean(t *testing.T) {
	for name, end := range map[string]func(*lane){
		"reset": func(l *lane) { l.destroy(true) },
		"close": func(l *lane) { l.destroy(false) },
		"cut in a frame": func(l *lane) {
			_, _ = l.conn.Write([]byte{0, 0, 0, 10, 1, 2})
			l.destroy(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := lanePair(t)
			free := make(chan bool, 1)
			sb := newLaneStream(testPair(), b, func(_ *lane, clean bool) { free <- clean })
			gone := make(chan struct{})
			sb.onPeerAbort(func() { close(gone) })
			end(a)
			if _, err := io.ReadAll(sb); !errors.Is(err, ErrAborted) {
				t.Fatalf("read: %v", err)
			}
			if <-free {
				t.Fatal("the lane was given back")
			}
			select {
			case <-gone:
			case <-time.After(30 * time.Second):
				t.Fatal("the abort was not told")
			}
		})
	}
}

func FuzzLaneFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 2, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 9, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		// What the bytes mean, by the definition of the framing.
		var want []byte
		ended := false
		for rest := b; len(rest) >= 4; {
			n := int(rest[0])<<24 | int(rest[1])<<16 | int(rest[2])<<8 | int(rest[3])
			rest = rest[4:]
			if n == 0 {
				ended = true
				break
			}
			if n > maxFrame {
				break
			}
			m := min(n, len(rest))
			want = append(want, rest[:m]...)
			rest = rest[m:]
		}
		a, l := lanePair(t)
		go func() {
			_, _ = a.conn.Write(b)
			_ = a.conn.(*tls.Conn).CloseWrite()
		}()
		st := newLaneStream(testPair(), l, func(*lane, bool) {})
		got, err := io.ReadAll(st)
		if !bytes.Equal(got, want) || ended != (err == nil) {
			t.Fatalf("%x: got %x, %v; want %x, ended %v", b, got, err, want, ended)
		}
	})
}

// TestOverStalled picks the longest-stalled streams, and only as many as needed.
func TestOverStalled(t *testing.T) {
	p := testPair()
	p.timing.stalled, p.timing.stalledBytes = time.Second, 3*streamWindow
	s := newSession(p, 1, CarrierQUIC, nil, nil, nil, nil, nil)
	now := time.Now()
	add := func(blocked time.Duration, written int64) *quicStream {
		st := &quicStream{sess: s}
		if blocked > 0 {
			st.blocked.Store(now.Add(-blocked).UnixNano())
		}
		st.written.Store(written)
		s.live[st] = struct{}{}
		return st
	}
	add(0, 1<<40)
	add(500*time.Millisecond, 1<<40)
	add(5*time.Second, 0)
	add(6*time.Second, 0)
	add(7*time.Second, streamWindow)
	if over := s.overStalled(now); len(over) != 0 {
		t.Fatalf("%d streams over the bound, want none", len(over))
	}
	oldest := add(9*time.Second, 0)
	if over := s.overStalled(now); len(over) != 1 || over[0] != oldest {
		t.Fatalf("%d streams over the bound, want the oldest", len(over))
	}
}

func TestGate(t *testing.T) {
	var g gate
	a, b := addrPort(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}).Addr(), addrPort(&net.TCPAddr{IP: net.ParseIP("2001:db8::2")}).Addr()
	c := addrPort(&net.TCPAddr{IP: net.ParseIP("192.0.2.1")}).Addr()
	var leaves []func()
	for range maxUnprovenPerAddress {
		leave, ok := g.enter(a)
		if !ok {
			t.Fatal("refused below the cap")
		}
		leaves = append(leaves, leave)
	}
	if _, ok := g.enter(b); ok {
		t.Fatal("another address of the same /64 was let in")
	}
	if leave, ok := g.enter(c); !ok {
		t.Fatal("another network was refused")
	} else {
		leave()
	}
	for _, leave := range leaves {
		leave()
	}
	if len(g.by) != 0 || g.total != 0 {
		t.Fatalf("gate holds %d entries, %d in total", len(g.by), g.total)
	}
}
