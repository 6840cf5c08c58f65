package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Dial opens one visitor connection to the target.
type Dial func(ctx context.Context) (net.Conn, error)

// TCP dials addr, on loopback from changing source addresses: one address has ports for some
// 28,000 connections a minute only.
func TCP(addr string) Dial {
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	spread := ip != nil && ip.To4() != nil && ip.IsLoopback()
	var n atomic.Uint32
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		if spread {
			d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+n.Add(1)%250))}
		}
		return d.DialContext(ctx, "tcp", addr)
	}
}

// TLS dials addr and speaks TLS with name, without resumption.
func TLS(addr, name string, cfg *tls.Config) Dial {
	dial := TCP(addr)
	c := cfg.Clone()
	c.ServerName = name
	return func(ctx context.Context) (net.Conn, error) {
		raw, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		tc := tls.Client(raw, c)
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return tc, nil
	}
}

// ClientHello is what a visitor of the passthrough tunnel of name sends first; the origin skips it.
func ClientHello(name string) []byte {
	a, b := net.Pipe()
	go func() {
		_ = tls.Client(a, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	buf := make([]byte, 8<<10)
	n, _ := b.Read(buf)
	_, _ = a.Close(), b.Close()
	return buf[:n]
}

// After is dial with first sent at once.
func After(dial Dial, first []byte) Dial {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := c.Write(first); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

// Paced is dial, at most once in d.
func Paced(dial Dial, d time.Duration) Dial {
	var mu sync.Mutex
	var next time.Time
	return func(ctx context.Context) (net.Conn, error) {
		mu.Lock()
		now := time.Now()
		if next.Before(now) {
			next = now
		}
		wait := next.Sub(now)
		next = next.Add(d)
		mu.Unlock()
		time.Sleep(wait)
		return dial(ctx)
	}
}

// Result is what one run measured. Rates are per second, latencies in seconds.
type Result struct {
	Bytes    int64   `json:"bytes,omitempty"`
	Count    int64   `json:"count,omitempty"`
	Failed   int64   `json:"failed,omitempty"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"rate"` // bytes or operations per second
	P50      float64 `json:"p50,omitempty"`
	P99      float64 `json:"p99,omitempty"`
	Loss     float64 `json:"loss,omitempty"`
	FirstErr string  `json:"first_error,omitempty"`
}

// run is one measurement by several workers. The clock starts when all are connected, and they
// stop at end.
type run struct {
	waiting    sync.WaitGroup
	begin      chan struct{}
	start, end time.Time

	mu    sync.Mutex
	lat   []time.Duration
	bytes atomic.Int64
	fail  atomic.Int64
	first atomic.Pointer[string]
}

// ready is called once by every worker, before what counts.
func (r *run) ready() {
	r.waiting.Done()
	<-r.begin
}

func (r *run) failed(err error) {
	r.fail.Add(1)
	s := err.Error()
	r.first.CompareAndSwap(nil, &s)
}

func (r *run) add(lat []time.Duration) {
	r.mu.Lock()
	r.lat = append(r.lat, lat...)
	r.mu.Unlock()
}

func (r *run) result() Result {
	res := Result{Bytes: r.bytes.Load(), Count: int64(len(r.lat)), Failed: r.fail.Load(), Seconds: time.Since(r.start).Seconds()}
	if p := r.first.Load(); p != nil {
		res.FirstErr = *p
	}
	res.Rate = float64(res.Bytes) / res.Seconds
	if len(r.lat) > 0 {
		res.Rate = float64(len(r.lat)) / res.Seconds
		res.P50, res.P99 = percentiles(r.lat)
	}
	return res
}

// percentiles sorts lat and returns its median and 99th percentile in seconds.
func percentiles(lat []time.Duration) (p50, p99 float64) {
	slices.Sort(lat)
	return lat[(len(lat)-1)/2].Seconds(), lat[(len(lat)-1)*99/100].Seconds()
}

// work runs f in n goroutines for d and sums up.
func work(ctx context.Context, n int, d time.Duration, f func(ctx context.Context, r *run)) Result {
	r := &run{begin: make(chan struct{})}
	r.waiting.Add(n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { f(ctx, r) })
	}
	r.waiting.Wait()
	r.start = time.Now()
	r.end = r.start.Add(d)
	close(r.begin)
	wg.Wait()
	return r.result()
}

// Bulk moves bytes over n connections for d: down from the origin, or up to it.
func Bulk(ctx context.Context, dial Dial, n int, d time.Duration, up bool) Result {
	return work(ctx, n, d, func(ctx context.Context, r *run) {
		c, err := open(ctx, dial)
		r.ready()
		if err != nil {
			r.failed(err)
			return
		}
		defer c.Close()
		_ = c.SetDeadline(r.end)
		cmd, move := byte(cmdDownload), c.Read
		if up {
			cmd, move = cmdUpload, c.Write
		}
		if _, err := c.Write([]byte{cmd}); err != nil {
			r.failed(err)
			return
		}
		buf := make([]byte, 256<<10)
		for {
			k, err := move(buf)
			r.bytes.Add(int64(k))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err != nil {
				r.failed(err)
				return
			}
		}
	})
}

// patience is how long one answer may take.
const patience = 10 * time.Second

func open(ctx context.Context, dial Dial) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return dial(ctx)
}

// repeat does one operation after the other until the run's end. With fresh each has a new
// connection, and its time includes opening it; else a first one that does not count opens the
// only connection.
func repeat(ctx context.Context, r *run, dial Dial, fresh bool, once func(c net.Conn, first bool) (closes bool, err error)) {
	var lat []time.Duration
	defer func() { r.add(lat) }()
	var c net.Conn
	next := func() error {
		start := time.Now()
		first, closes := c == nil, false
		var err error
		if first {
			c, err = open(ctx, dial)
		}
		if err == nil {
			_ = c.SetDeadline(start.Add(patience))
			closes, err = once(c, first)
		}
		if err != nil {
			r.failed(err)
		}
		if (fresh || closes || err != nil) && c != nil {
			_ = c.Close()
			c = nil
		}
		return err
	}
	if !fresh {
		_ = next() // counted as failed where it did
	}
	r.ready()
	for time.Now().Before(r.end) {
		start := time.Now()
		if next() == nil {
			lat = append(lat, time.Since(start))
		}
	}
	if c != nil {
		_ = c.Close()
	}
}

// Echo measures round trips of size bytes on n connections; fresh opens a connection each time.
func Echo(ctx context.Context, dial Dial, n, size int, d time.Duration, fresh bool) Result {
	return work(ctx, n, d, func(ctx context.Context, r *run) {
		buf := make([]byte, 1+size)
		buf[0] = cmdEcho
		repeat(ctx, r, dial, fresh, func(c net.Conn, first bool) (bool, error) {
			send := buf[1:]
			if first {
				send = buf
			}
			if _, err := c.Write(send); err != nil {
				return true, err
			}
			_, err := io.ReadFull(c, buf[1:])
			return false, err
		})
	})
}

// HTTP sends GET requests on n connections; fresh opens a connection for each.
func HTTP(ctx context.Context, dial Dial, host string, n int, d time.Duration, fresh bool) Result {
	req := "GET / HTTP/1.1\r\nHost: " + host + "\r\n"
	if fresh {
		req += "Connection: close\r\n"
	}
	request := []byte(req + "\r\n")
	return work(ctx, n, d, func(ctx context.Context, r *run) {
		var br *bufio.Reader
		repeat(ctx, r, dial, fresh, func(c net.Conn, first bool) (bool, error) {
			if first {
				br = bufio.NewReaderSize(c, 4<<10)
			}
			if _, err := c.Write(request); err != nil {
				return true, err
			}
			return readResponse(br)
		})
	})
}

func readResponse(br *bufio.Reader) (closes bool, err error) {
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return true, err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return true, err
	}
	if resp.StatusCode != http.StatusOK || n != BodySize {
		return true, fmt.Errorf("status %d with %d bytes", resp.StatusCode, n)
	}
	return resp.Close, nil
}

// Held are open connections that say nothing.
type Held struct {
	conns []net.Conn
	run   run
}

// Hold opens n connections, each of which has had one byte from the origin.
func Hold(ctx context.Context, dial Dial, n int) *Held {
	h := &Held{}
	h.each(n, 32, func(int) {
		c, err := open(ctx, dial)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(2 * patience))
			if _, err = c.Write([]byte{cmdIdle}); err == nil {
				_, err = io.ReadFull(c, make([]byte, 1))
			}
		}
		if err != nil {
			h.run.failed(err)
			if c != nil {
				_ = c.Close()
			}
			return
		}
		h.run.mu.Lock()
		h.conns = append(h.conns, c)
		h.run.mu.Unlock()
	})
	return h
}

// Exchange moves ExchangeSize bytes each way on every connection, a few at a time.
func (h *Held) Exchange() {
	h.each(len(h.conns), 8, func(i int) {
		c := h.conns[i]
		_ = c.SetDeadline(time.Now().Add(3 * patience))
		_, err := c.Write([]byte{0})
		if err == nil {
			err = exchange(c)
		}
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			h.run.failed(err)
		}
	})
}

// Open is the number of open connections.
func (h *Held) Open() int { return len(h.conns) }

// Close closes them all and reports what failed.
func (h *Held) Close() (failed int64, first string) {
	for _, c := range h.conns {
		_ = c.Close()
	}
	if p := h.run.first.Load(); p != nil {
		first = *p
	}
	return h.run.fail.Load(), first
}

func (h *Held) each(n, workers int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	wg.Wait()
}
