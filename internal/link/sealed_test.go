package link

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/datagram"
)

// keys makes both ends of one direction.
func keys(t testing.TB, suite uint16) (*sealer, *unsealer) {
	t.Helper()
	one, err := newSealKey(suite, 0, bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	two, _ := newSealKey(suite, 0, bytes.Repeat([]byte{1}, 32))
	return &sealer{id: 9, key: one}, &unsealer{id: 9, key: two}
}

func seal(t testing.TB, s *sealer, text string) []byte {
	t.Helper()
	b, err := s.seal(nil, sealedData, []byte(text[:len(text)/2]), []byte(text[len(text)/2:]))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSeal(t *testing.T) {
	for name, suite := range map[string]uint16{
		"AES-128": tls.TLS_AES_128_GCM_SHA256, "AES-256": tls.TLS_AES_256_GCM_SHA384, "ChaCha20": tls.TLS_CHACHA20_POLY1305_SHA256,
	} {
		t.Run(name, func(t *testing.T) {
			s, u := keys(t, suite)
			for _, text := range []string{"", "x", "a datagram"} {
				b := seal(t, s, text)
				if len(b) != len(text)+sealedExtra || len(text) > 1 && bytes.Contains(b, []byte(text)) {
					t.Errorf("%q became %q", text, b)
				}
				kind, got, err := u.open(b)
				if err != nil || kind != sealedData || string(got) != text {
					t.Errorf("%q came as %d %q, %v", text, kind, got, err)
				}
			}
		})
	}
	s, u := keys(t, tls.TLS_AES_128_GCM_SHA256)
	t.Run("a packet opens once", func(t *testing.T) {
		b := seal(t, s, "once")
		again := bytes.Clone(b)
		if _, _, err := u.open(b); err != nil {
			t.Fatal(err)
		}
		if _, _, err := u.open(again); !errors.Is(err, errSealed) {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("not a bit of it may change", func(t *testing.T) {
		b := seal(t, s, "whole")
		for i := range len(b) * 8 {
			if i/8 >= 1 && i/8 < datagram.HeadSize {
				continue // whose it is: another's key
			}
			c := bytes.Clone(b)
			c[i/8] ^= 1 << (i % 8)
			if _, _, err := u.open(c); !errors.Is(err, errSealed) {
				t.Fatalf("bit %d: %v", i, err)
			}
		}
		for n := range b {
			if _, _, err := u.open(bytes.Clone(b[:n])); !errors.Is(err, errSealed) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
		if _, _, err := u.open(b); err != nil {
			t.Errorf("refused packets spoiled it: %v", err)
		}
	})
	t.Run("the key changes, and packets of the one before still open", func(t *testing.T) {
		s, u := keys(t, tls.TLS_AES_128_GCM_SHA256)
		s.counter = packetsPerKey - 2
		var all [][]byte
		for range 4 {
			all = append(all, seal(t, s, "text"))
		}
		for _, i := range []int{0, 2, 1, 3} {
			if _, text, err := u.open(all[i]); err != nil || string(text) != "text" {
				t.Errorf("packet %d: %q, %v", i, text, err)
			}
		}
		if u.key.number != 1 || bytes.Equal(u.key.secret, u.before.secret) {
			t.Errorf("key %d", u.key.number)
		}
		// A number far ahead, which nobody could have sealed, moves no key.
		b := seal(t, s, "ahead")
		binary.BigEndian.PutUint32(b[datagram.HeadSize:], 1<<31)
		if _, _, err := u.open(b); !errors.Is(err, errSealed) || u.key.number != 1 {
			t.Errorf("%v, key %d", err, u.key.number)
		}
	})
}

func TestReplayWindow(t *testing.T) {
	var w replayWindow
	came := map[uint64]bool{}
	for _, n := range []uint64{0, 5, 3, 64, 63, 2047, 2048, 1, 2500, 700, 10000, 9999, 7953, 20000, 17953, 1 << 40} {
		old := n+replaySize < w.next
		if got, want := w.has(n), came[n] || old; got != want {
			t.Errorf("%d: %v", n, got)
		}
		if !old {
			w.add(n)
			came[n] = true
		}
		for m := range came {
			if !w.has(m) {
				t.Errorf("%d forgotten after %d", m, n)
			}
		}
	}
	if w.has(1<<40 - 1) {
		t.Error("a number that did not come")
	}
}

// sealedPair are both ends of a session over two sockets, read by hand.
type sealedPair struct {
	*sealed
	carrier *datagram.Carrier
	got     [][]byte
	drops   map[string]int
}

func newSealedPair(t *testing.T, now *time.Time) (agent, edge *sealedPair) {
	t.Helper()
	end := func() *sealedPair {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, c := datagram.Share(conn)
		return &sealedPair{carrier: c, drops: map[string]int{}}
	}
	agent, edge = end(), end()
	if agent.carrier == nil {
		return nil, nil // Only Linux shares sockets.
	}
	out, in := keys(t, tls.TLS_AES_128_GCM_SHA256)
	for _, p := range []*sealedPair{agent, edge} {
		o, i := *out, *in
		other := edge
		if p == edge {
			other = agent
		}
		p.sealed = &sealed{
			carrier: p.carrier, now: func() time.Time { return *now }, in: i, out: o,
			path: func() (netip.AddrPort, int) {
				return other.carrier.LocalAddr().(*net.UDPAddr).AddrPort(), 1163
			},
			drop: func(reason string, n int) {
				if n > 0 {
					p.drops[reason] += n
				}
			},
			deliver: func(b []byte) *flow { p.got = append(p.got, bytes.Clone(b)); return nil },
		}
	}
	return agent, edge
}

// read takes the n packets that wait at p.
func (p *sealedPair) read(t *testing.T, n int) {
	t.Helper()
	buf := make([]byte, 2048)
	for range n {
		_ = p.carrier.SetReadDeadline(time.Now().Add(5 * time.Second))
		k, err := p.carrier.UDPConn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		p.Packet(buf[:k])
	}
	p.BatchEnd()
}

func TestSealedWay(t *testing.T) {
	now := time.Unix(1000, 0)
	a, e := newSealedPair(t, &now)
	if a == nil {
		return
	}
	send := func(text string) bool { defer a.flush(); return a.sendNow([]byte("1"), []byte(text)) }
	if send("first") {
		t.Fatal("the way was taken before anybody answered on it")
	}
	e.read(t, 1) // the question
	a.read(t, 1) // the answer
	if !send("second") {
		t.Fatal("an answered way was not taken")
	}
	e.read(t, 1)
	if len(e.got) != 1 || string(e.got[0]) != "1second" {
		t.Fatalf("%q", e.got)
	}
	t.Run("what is larger than the path's packets goes by QUIC", func(t *testing.T) {
		if send(string(make([]byte, 1163))) {
			t.Error("taken")
		}
	})
	t.Run("until QUIC finds that the path takes larger ones", func(t *testing.T) {
		path, large := a.path, string(make([]byte, 1200))
		defer func() { a.path = path }()
		a.path = func() (netip.AddrPort, int) { to, _ := path(); return to, 1400 }
		if send(large) {
			t.Error("taken before it was asked for")
		}
		now = now.Add(sealedLook)
		if !send(large) {
			t.Error("not taken")
		}
		e.read(t, 1)
	})
	t.Run("silence gives it up, an answer takes it up again", func(t *testing.T) {
		now = now.Add(sealedTrust + time.Millisecond)
		if send("x") {
			t.Error("taken after two seconds of silence")
		}
		e.read(t, 1)
		a.read(t, 1)
		if !send("x") {
			t.Error("not taken again")
		}
		e.read(t, 1)
	})
	t.Run("strangers' packets change nothing", func(t *testing.T) {
		other, _ := keys(t, tls.TLS_CHACHA20_POLY1305_SHA256)
		before := len(e.got)
		e.Packet(seal(t, other, "forged"))
		e.Packet([]byte{datagram.Mark})
		b, _ := a.out.seal(nil, sealedAnswer, []byte("short"), nil)
		e.Packet(b)
		b, _ = a.out.seal(nil, 3, nil, nil)
		e.Packet(b)
		if len(e.got) != before || e.drops[dropMalformed] != 4 {
			t.Errorf("%d delivered, %v", len(e.got)-before, e.drops)
		}
	})
	t.Run("a path that loses most of a flood is not flooded on", func(t *testing.T) {
		var sent, arrived uint64
		at := now
		for range 3 { // A hundred megabytes a second, of which ten arrive.
			at = at.Add(sealedEvery)
			sent, arrived = sent+25e6, arrived+25e5
			a.guard.answered(sent, arrived, at)
		}
		now = at
		allowed := 0
		for range 1000 { // a second
			now = now.Add(time.Millisecond)
			for range 100 {
				if a.guard.allow(1000, now) {
					allowed += 1000
				}
			}
		}
		if allowed < 8e6 || allowed > 12e6 {
			t.Errorf("%d bytes in a second", allowed)
		}
		for range 40 {
			at = at.Add(sealedEvery)
			sent, arrived = sent+1e6, arrived+1e6
			a.guard.answered(sent, arrived, at)
		}
		if a.guard.limit != 0 {
			t.Errorf("still limited to %v after ten seconds without loss", a.guard.limit)
		}
	})
	t.Run("steady loss is no flood", func(t *testing.T) {
		g := pathGuard{}
		for i := range uint64(50) {
			g.answered(i*1e6, i*85e4, now.Add(time.Duration(i)*sealedEvery))
		}
		if g.limit != 0 {
			t.Errorf("limited to %v", g.limit)
		}
	})
}

func FuzzSealed(f *testing.F) {
	s, _ := keys(f, tls.TLS_AES_128_GCM_SHA256)
	f.Add(seal(f, s, "text"))
	f.Add([]byte{datagram.Mark})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, u := keys(t, tls.TLS_AES_128_GCM_SHA256)
		c := bytes.Clone(b)
		_, text, err := u.open(c)
		if err == nil && len(text)+sealedExtra != len(b) {
			t.Errorf("%d bytes of %d", len(text), len(b))
		}
	})
}
