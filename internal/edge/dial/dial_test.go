package dial_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/dial/dialtest"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is an origin that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return "tcp://" + l.Addr().String()
}

func tunnel(kind wirev1.Kind, origins ...string) *hubv1.Tunnel {
	t := &hubv1.Tunnel{Id: "t1", Kind: kind, Name: "t1"}
	for _, o := range origins {
		t.Origins = append(t.Origins, &hubv1.Origin{Url: o})
	}
	return t
}

func refuse(untouched bool) func(*wirev1.StreamHeader) *reason.Error {
	return func(*wirev1.StreamHeader) *reason.Error {
		e := reason.New(reason.OriginRefused, reason.HopOrigin, "connection refused")
		e.Untouched = untouched
		return e
	}
}

func TestDial(t *testing.T) {
	o := echo(t)
	hello := []byte("\x16hello")
	tests := []struct {
		name     string
		kind     wirev1.Kind
		replicas []*dialtest.Replica
		first    []byte
		pin      string
		origin   uint32
		want     reason.Code // "" = success
		served   string
	}{
		{"no replica", wirev1.Kind_KIND_TCP, nil, nil, "", 0, reason.NoAgent, ""},
		{"one replica", wirev1.Kind_KIND_TCP, []*dialtest.Replica{{Name: "a"}}, nil, "", 0, "", "a"},
		{"pinned", wirev1.Kind_KIND_TCP, []*dialtest.Replica{{Name: "a"}, {Name: "b"}}, nil, "b", 0, "", "b"},
		{"pinned to one that left", wirev1.Kind_KIND_TCP, []*dialtest.Replica{{Name: "a"}}, nil, "b", 0, reason.NoAgent, ""},
		{"no such origin", wirev1.Kind_KIND_TCP, []*dialtest.Replica{{Name: "a"}}, nil, "", 7, reason.OriginUnresolved, ""},
		{"untouched refusal moves on", wirev1.Kind_KIND_TCP,
			[]*dialtest.Replica{{Name: "a", Refuse: refuse(true)}, {Name: "b"}}, []byte("x"), "", 0, "", "b"},
		{"touched refusal does not", wirev1.Kind_KIND_TCP,
			[]*dialtest.Replica{{Name: "a", Refuse: refuse(false)}, {Name: "b", Refuse: refuse(false)}}, []byte("x"), "", 0, reason.OriginRefused, ""},
		{"nothing sent moves on", wirev1.Kind_KIND_TCP,
			[]*dialtest.Replica{{Name: "a", Refuse: refuse(false)}, {Name: "b"}}, nil, "", 0, "", "b"},
		{"a hello alone moves on", wirev1.Kind_KIND_TLS,
			[]*dialtest.Replica{{Name: "a", Refuse: refuse(false)}, {Name: "b"}}, hello, "", 0, "", "b"},
		{"open error moves on", wirev1.Kind_KIND_TCP,
			[]*dialtest.Replica{{Name: "a", OpenError: refuse(true)}, {Name: "b"}}, []byte("x"), "", 0, "", "b"},
		{"all refuse", wirev1.Kind_KIND_TCP,
			[]*dialtest.Replica{{Name: "a", Refuse: refuse(true)}, {Name: "b", Refuse: refuse(true)}}, []byte("x"), "", 0, reason.OriginRefused, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range tt.replicas {
				r.Origins = []string{o}
			}
			d := dial.New(dialtest.NewSource(tt.replicas...))
			req := dial.Request{Tunnel: tunnel(tt.kind, o), First: tt.first, Replica: tt.pin, Origin: tt.origin,
				Visitor: netip.MustParseAddrPort("192.0.2.1:5"), Local: netip.MustParseAddrPort("192.0.2.2:443")}
			for _, start := range []bool{false, true} {
				open := d.Dial
				if start {
					open = d.Start
				}
				c, err := open(t.Context(), req)
				if err == nil && start {
					err = settle(c)
				}
				if tt.want != "" {
					if !reason.Is(err, tt.want) {
						t.Fatalf("start=%v: error %v, want %s", start, err, tt.want)
					}
					if c != nil {
						c.Abort()
					}
					continue
				}
				if err != nil {
					t.Fatalf("start=%v: %v", start, err)
				}
				if c.Replica() != tt.served {
					t.Errorf("start=%v: served by %s, want %s", start, c.Replica(), tt.served)
				}
				_ = c.CloseWrite()
				if start {
					_ = c.Close()
					continue
				}
				got, err := io.ReadAll(c)
				if err != nil || !bytes.Equal(got, tt.first) {
					t.Errorf("echo %q, %v, want %q", got, err, tt.first)
				}
				_ = c.Close()
			}
		})
	}
}

// settle waits for the answer by reading: the echo of what First had, or the end.
func settle(c *dial.Conn) error {
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func TestHeader(t *testing.T) {
	o := echo(t)
	a := &dialtest.Replica{Name: "a", Origins: []string{o}}
	d := dial.New(dialtest.NewSource(a))
	c, err := d.Dial(t.Context(), dial.Request{
		Tunnel: tunnel(wirev1.Kind_KIND_HTTP, o), Class: wirev1.Class_CLASS_BULK, ALPN: []string{"h2"},
		Visitor: netip.MustParseAddrPort("[2001:db8::1]:5"), ServerName: "a.example.com", TraceContext: "00-1-2-01",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	h := a.Last()
	if h.GetTunnelId() != "t1" || h.GetVisitorAddress() != "[2001:db8::1]:5" || h.GetEdgeAddress() != "" ||
		h.GetServerName() != "a.example.com" || h.GetClass() != wirev1.Class_CLASS_BULK || !slices.Equal(h.GetAlpn(), []string{"h2"}) ||
		h.GetTraceContext() != "00-1-2-01" || h.GetKind() != wirev1.Kind_KIND_HTTP {
		t.Errorf("header %v", h)
	}
}

func TestOrder(t *testing.T) {
	rs := []*dialtest.Replica{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	d := dial.New(dialtest.NewSource(rs...))
	load := map[string]int64{"a": 2, "b": 0, "c": 0}
	first := map[string]int{}
	for range 200 {
		got := d.Order("t1", func(r dial.Replica) int64 { return load[r.ID()] })
		if got[2].ID() != "a" {
			t.Fatalf("the busiest replica is not last: %v", got)
		}
		first[got[0].ID()]++
	}
	if first["b"] < 50 || first["c"] < 50 {
		t.Errorf("equals are not chosen evenly: %v", first)
	}
	rs[1].Gone.Store(true)
	for range 20 {
		got := d.Order("t1", func(r dial.Replica) int64 { return load[r.ID()] })
		if got[0].ID() != "c" || got[2].ID() != "b" {
			t.Fatalf("the replica that may be gone is not last: %v", got)
		}
	}
}

func TestStart(t *testing.T) {
	o := echo(t)
	t.Run("what was written before the refusal is replayed", func(t *testing.T) {
		hold := make(chan struct{})
		a := &dialtest.Replica{Name: "a", Hold: hold, Refuse: refuse(true)}
		b := &dialtest.Replica{Name: "b", Origins: []string{o}}
		d := dial.New(dialtest.NewSource(a, b))
		c, err := d.Start(t.Context(), dial.Request{Tunnel: tunnel(wirev1.Kind_KIND_HTTP, o), First: []byte("fi"), Prefer: "a"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"rst ", "and ", "more"} {
			if _, err := c.Write([]byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		close(hold)
		got, err := io.ReadAll(c)
		if string(got) != "first and more" || err != nil || c.Replica() != "b" || a.Opened.Load() != 1 {
			t.Errorf("got %q, %v from %s", got, err, c.Replica())
		}
		_ = c.Close()
	})
	t.Run("more than is kept waits for the answer", func(t *testing.T) {
		hold := make(chan struct{})
		a := &dialtest.Replica{Name: "a", Hold: hold, Refuse: refuse(true)}
		b := &dialtest.Replica{Name: "b", Origins: []string{o}}
		d := dial.New(dialtest.NewSource(a, b))
		c, err := d.Start(t.Context(), dial.Request{Tunnel: tunnel(wirev1.Kind_KIND_HTTP, o), Prefer: "a"})
		if err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			wrote <- errors.Join(err, c.CloseWrite())
		}()
		select {
		case <-wrote:
			t.Fatal("1 MiB was written without an answer")
		case <-time.After(50 * time.Millisecond):
		}
		close(hold)
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
	t.Run("a touched refusal is final", func(t *testing.T) {
		a := &dialtest.Replica{Name: "a", Refuse: refuse(false)}
		b := &dialtest.Replica{Name: "b", Origins: []string{o}}
		d := dial.New(dialtest.NewSource(a, b))
		c, err := d.Start(t.Context(), dial.Request{Tunnel: tunnel(wirev1.Kind_KIND_HTTP, o), First: []byte("x"), Prefer: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !reason.Is(err, reason.OriginRefused) {
			t.Errorf("error %v", err)
		}
		if b.Opened.Load() != 0 {
			t.Error("it was tried elsewhere")
		}
		_ = c.Close()
	})
	t.Run("closing before the answer ends everything", func(t *testing.T) {
		hold := make(chan struct{})
		a := &dialtest.Replica{Name: "a", Hold: hold, Origins: []string{o}}
		d := dial.New(dialtest.NewSource(a))
		ctx, cancel := context.WithCancel(t.Context())
		c, err := d.Start(ctx, dial.Request{Tunnel: tunnel(wirev1.Kind_KIND_HTTP, o)})
		if err != nil {
			t.Fatal(err)
		}
		cancel() // the dial's context says nothing about the stream
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		c.Abort()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("read after abort")
		}
		close(hold)
	})
}
