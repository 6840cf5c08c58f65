package link

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxFrame bounds the payload of one lane frame.
	maxFrame = 128 << 10
	// smallRecord is the TLS record size of a stream's first bulkAfter bytes, largeRecord of
	// the rest: a peer keeps an input buffer of about the largest record it ever got.
	smallRecord = 4 << 10
	largeRecord = 16 << 10
	bulkAfter   = 64 << 10
)

// lane is a connection of a pair that carries one stream at a time. On a TLS connection payload
// goes in frames of a 4-byte length and that many bytes; an empty frame ends the direction for
// this stream. A raw lane has the ends of TCP instead.
type lane struct {
	id    uint64
	conn  net.Conn
	sock  *sockConn  // below TLS where it is ours; nil otherwise
	plain *plainConn // a raw lane: no TLS, no frames, one stream
	raw   net.Conn   // closes at once
	since time.Time
	bytes atomic.Int64
	bulk  atomic.Bool // carried more than bulkAfter in one stream

	// Reading: owned by the reader of the current stream, or by the sentinel while idle.
	hdr  [4]byte
	hdrN int
	rem  int
	// begun: the current frame's length was read and nothing of the frame was.
	begun bool
	// sentinel, if not nil, yields the result of a readHeader begun while the lane was idle.
	sentinel chan error

	once sync.Once
}

func newLane(id uint64, conn *tls.Conn) *lane {
	l := &lane{id: id, conn: conn, raw: conn.NetConn(), since: time.Now()}
	l.sock, _ = l.raw.(*sockConn)
	return l
}

// read reads payload; end is the end of the stream.
func (l *lane) read(p []byte) (n int, end bool, err error) {
	if l.plain != nil {
		n, err = l.plain.Read(p)
		if errors.Is(err, io.EOF) {
			return n, true, nil
		}
		return n, false, err
	}
	if err := l.await(); err != nil {
		return 0, false, err
	}
	if l.rem == 0 {
		l.begun = false
		return 0, true, nil
	}
	if len(p) == 0 {
		return 0, false, nil
	}
	l.begun = false
	n, err = l.conn.Read(p[:min(len(p), l.rem)])
	l.rem -= n
	return n, false, err
}

// await waits for payload, or the end of the stream.
func (l *lane) await() error {
	// While a sentinel reads, rem is its own.
	if l.sentinel == nil && (l.rem > 0 || l.begun) {
		return nil
	}
	if err := l.nextFrame(); err != nil {
		return err
	}
	l.begun = true
	return nil
}

// readHeader reads the next frame's length into rem. It goes on where a deadline struck.
func (l *lane) readHeader() error {
	for l.hdrN < len(l.hdr) {
		n, err := l.conn.Read(l.hdr[l.hdrN:])
		l.hdrN += n
		if err != nil && l.hdrN < len(l.hdr) {
			return err
		}
	}
	l.hdrN = 0
	n := binary.BigEndian.Uint32(l.hdr[:])
	if n > maxFrame {
		return fmt.Errorf("lane frame of %d bytes, limit %d", n, maxFrame)
	}
	l.rem = int(n)
	return nil
}

// nextFrame is readHeader, or its result if the sentinel began it.
func (l *lane) nextFrame() error {
	if c := l.sentinel; c != nil {
		err := <-c
		l.sentinel = nil
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return l.readHeader()
}

var records = sync.Pool{New: func() any { b := make([]byte, largeRecord); return &b }}

// writeFrame sends p (at most maxFrame bytes) as one frame, its records in one write where the
// socket below is ours. sent is what the stream has written before.
func (l *lane) writeFrame(p []byte, sent int64) error {
	if l.plain != nil {
		return l.plain.writeFrame(p)
	}
	if l.sock != nil {
		l.sock.hold()
		defer l.sock.release()
	}
	size := smallRecord
	if sent >= bulkAfter {
		size = largeRecord
	}
	b := records.Get().(*[]byte)
	defer records.Put(b)
	rec := (*b)[:size]
	binary.BigEndian.PutUint32(rec, uint32(len(p)))
	n := copy(rec[4:], p)
	if _, err := l.conn.Write(rec[:4+n]); err != nil {
		return err
	}
	for n < len(p) {
		m := min(size, len(p)-n)
		if _, err := l.conn.Write(p[n : n+m]); err != nil {
			return err
		}
		n += m
	}
	l.bytes.Add(int64(len(p)))
	if l.sock != nil {
		return l.sock.flush()
	}
	return nil
}

// untouched reports whether the kernel took nothing since mark.
func (l *lane) untouched(mark int64) bool { return l.sock != nil && l.sock.sent.Load() == mark }

func (l *lane) mark() int64 {
	if l.sock == nil {
		return 0
	}
	return l.sock.sent.Load()
}

// destroy closes the connection at once; a reset tells the peer that nothing ended cleanly.
func (l *lane) destroy(reset bool) {
	l.once.Do(func() {
		if reset {
			if t := tcpConn(l.raw); t != nil {
				_ = t.SetLinger(0)
			}
		}
		_ = l.raw.Close()
	})
}
