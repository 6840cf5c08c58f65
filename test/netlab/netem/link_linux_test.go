package netem_test

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/netlab"
	"github.com/adit-dev/adit/test/netlab/netem"
)

// answers holds the round trips of the datagrams that came back, in order of arrival.
type answers struct {
	number []int
	took   []time.Duration
}

// ping sends n datagrams from A to an echo in B, pause apart, and collects answers until none
// has come for half a second.
func ping(t *testing.T, lab *netlab.Pair, n, size int, pause time.Duration) answers {
	t.Helper()
	echo := listen(t, lab.B)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	c := listen(t, lab.A)
	start := time.Now()
	sent := make([]time.Duration, n)
	got := make(chan answers)
	finish := make(chan struct{})
	go func() {
		var a answers
		buf := make([]byte, 2048)
		for {
			_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			k, _, err := c.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				select {
				case <-finish:
					got <- a
					return
				default:
					continue
				}
			}
			if err != nil || k < 16 {
				got <- a
				return
			}
			a.number = append(a.number, int(binary.BigEndian.Uint64(buf)))
			a.took = append(a.took, time.Since(start)-time.Duration(binary.BigEndian.Uint64(buf[8:])))
		}
	}()
	buf := make([]byte, size)
	for i := range n {
		sent[i] = time.Since(start)
		binary.BigEndian.PutUint64(buf, uint64(i))
		binary.BigEndian.PutUint64(buf[8:], uint64(sent[i]))
		if _, err := c.WriteTo(buf, echo.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if pause > 0 {
			time.Sleep(pause) // the pace of the sender, not a wait for anything
		}
	}
	close(finish)
	return <-got
}

func listen(t *testing.T, e netlab.End) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	if err := e.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", net.JoinHostPort(e.Addr, "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPath(t *testing.T) {
	t.Run("delay", func(t *testing.T) {
		lab := netlab.Join(t, netem.Path{Delay: 20 * time.Millisecond})
		a := ping(t, lab, 50, 100, time.Millisecond)
		if len(a.took) != 50 {
			t.Fatalf("%d of 50 came back", len(a.took))
		}
		if !slices.IsSorted(a.number) {
			t.Errorf("out of order: %v", a.number)
		}
		slices.Sort(a.took)
		if a.took[0] < 40*time.Millisecond || a.took[25] > 80*time.Millisecond {
			t.Errorf("round trips from %s, median %s; want 40 ms and little more", a.took[0], a.took[25])
		}
	})
	t.Run("loss", func(t *testing.T) {
		lab := netlab.Join(t, netem.Path{Loss: 0.2})
		a := ping(t, lab, 600, 100, 500*time.Microsecond)
		// 0.8 there and 0.8 back.
		if n := len(a.took); n < 324 || n > 444 {
			t.Errorf("%d of 600 came back, want about 384", n)
		}
		ab, ba := lab.Stats()
		if ab.Lost < 70 || ab.Lost > 170 || ba.Forwarded < int64(len(a.took)) {
			t.Errorf("counters: %+v, %+v", ab, ba)
		}
	})
	t.Run("reordering", func(t *testing.T) {
		lab := netlab.Join(t, netem.Path{Delay: 10 * time.Millisecond, Reorder: 0.1})
		a := ping(t, lab, 200, 100, time.Millisecond)
		if len(a.took) != 200 || slices.IsSorted(a.number) {
			t.Errorf("%d of 200 came back, in order: %v", len(a.took), slices.IsSorted(a.number))
		}
	})
	t.Run("rate and queue", func(t *testing.T) {
		// 10 Mbit/s with 20 ms of queue hold 25 kB: of 100 kB sent at once most is dropped.
		lab := netlab.Join(t, netem.Path{Rate: 10e6, Queue: 20 * time.Millisecond})
		a := ping(t, lab, 100, 1000, 0)
		if n := len(a.took); n < 10 || n > 60 {
			t.Errorf("%d of 100 came back, want about 25", n)
		}
		if ab, _ := lab.Stats(); ab.QueueDrops == 0 {
			t.Errorf("no drops at the queue: %+v", ab)
		}
	})
	t.Run("change while running", func(t *testing.T) {
		lab := netlab.Join(t, netem.Path{Loss: 1})
		if a := ping(t, lab, 10, 100, 0); len(a.took) != 0 {
			t.Errorf("%d came through a dead path", len(a.took))
		}
		lab.Set(netem.Path{}, netem.Path{})
		if a := ping(t, lab, 10, 100, 0); len(a.took) != 10 {
			t.Errorf("%d of 10 came through a mended path", len(a.took))
		}
	})
}

func TestSysctl(t *testing.T) {
	if !netlab.AllowCongestion(t, "reno") {
		t.Fatal("every kernel has reno")
	}
	lab := netlab.Join(t, netem.Path{})
	for _, e := range []netlab.End{lab.A, lab.B} {
		if err := e.Sysctl("ipv4.tcp_congestion_control", "reno"); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	if err := lab.A.Do(func() (err error) {
		got, err = os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
		return err
	}); err != nil || string(got) != "reno\n" {
		t.Errorf("read back %q, %v", got, err)
	}
	if host, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control"); err != nil || string(host) == "reno\n" {
		t.Errorf("the host has %q, %v", host, err)
	}
}
