package load

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// udpRun is one UDP measurement: every datagram carries the time it was sent.
type udpRun struct {
	conn       *net.UDPConn
	sent, back atomic.Int64
	mu         sync.Mutex
	lat        []time.Duration
	done       chan struct{}
}

func startUDP(addr string) (*udpRun, error) {
	a, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, err
	}
	c, err := net.DialUDP("udp", nil, a)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(8 << 20)
	_ = c.SetWriteBuffer(8 << 20)
	u := &udpRun{conn: c, done: make(chan struct{})}
	go u.receive()
	return u, nil
}

func (u *udpRun) receive() {
	defer close(u.done)
	buf := make([]byte, 1<<16)
	for {
		n, err := u.conn.Read(buf)
		if err != nil {
			return
		}
		if n >= 8 {
			u.back.Add(1)
			d := time.Duration(time.Now().UnixNano() - int64(binary.BigEndian.Uint64(buf)))
			u.mu.Lock()
			u.lat = append(u.lat, d)
			u.mu.Unlock()
		}
	}
}

func (u *udpRun) send(buf []byte) {
	binary.BigEndian.PutUint64(buf, uint64(time.Now().UnixNano()))
	if _, err := u.conn.Write(buf); err == nil {
		u.sent.Add(1)
	}
}

// end waits for late answers and sums up.
func (u *udpRun) end(start time.Time) Result {
	took := time.Since(start).Seconds()
	_ = u.conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	<-u.done
	_ = u.conn.Close()
	r := Result{Count: u.back.Load(), Seconds: took, Rate: float64(u.back.Load()) / took}
	r.Loss = 1 - float64(u.back.Load())/float64(max(1, u.sent.Load()))
	if len(u.lat) > 0 {
		r.P50, r.P99 = percentiles(u.lat)
	}
	return r
}

// UDPWindow keeps window datagrams in flight: the highest rate the path sustains.
func UDPWindow(addr string, size, window int, d time.Duration) (Result, error) {
	u, err := startUDP(addr)
	if err != nil {
		return Result{}, err
	}
	buf := make([]byte, size)
	start := time.Now()
	var lost int64 // written off after 200 ms without an answer
	for time.Since(start) < d {
		waiting := time.Now()
		for u.sent.Load()-u.back.Load()-lost >= int64(window) {
			// A poll, not a signal of the receiver: waking up would cost more than the path.
			time.Sleep(5 * time.Microsecond)
			if time.Since(waiting) > 200*time.Millisecond {
				lost = u.sent.Load() - u.back.Load()
			}
		}
		u.send(buf)
	}
	return u.end(start), nil
}

// UDPRate sends perSecond datagrams a second, evenly.
func UDPRate(addr string, size, perSecond int, d time.Duration) (Result, error) {
	u, err := startUDP(addr)
	if err != nil {
		return Result{}, err
	}
	buf := make([]byte, size)
	start := time.Now()
	gap := time.Second / time.Duration(perSecond)
	for next := start; time.Since(start) < d; next = next.Add(gap) {
		if wait := time.Until(next); wait > 200*time.Microsecond {
			time.Sleep(wait)
		}
		u.send(buf)
	}
	return u.end(start), nil
}
