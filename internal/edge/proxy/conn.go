package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// partingTime is how long an idle connection waits for the origin's end after its own, so
	// that the stream ends cleanly and what carried it can be used again.
	partingTime = 5 * time.Second
	// answerTime is how long a failed write waits for an answer that may be on its way: origins
	// that refuse a body answer first and close then.
	answerTime = time.Second
)

// conn is an origin connection of the pool.
type conn struct {
	*dial.Conn
	pool      *pool
	owner     *replica // guarded by pool.mu
	tunnelID  string
	visitorID uint64 // of the visitor connection it belongs to alone, else 0
	protocol  protocol

	// unread: nobody reads while no request is on it.
	unread bool
	// busy counts the requests on it.
	busy    atomic.Int32
	settled bool // the reader's: the first bytes came
	failure atomic.Pointer[error]
	// readEnded is closed with the first failed read.
	readEnded  chan struct{}
	wroteEnd   atomic.Bool
	closing    atomic.Bool
	closeOnce  sync.Once
	closeError error
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.settled {
		c.settled = true
		if now := c.Replica(); now != c.ReplicaID {
			c.pool.moved(c, now)
		}
	}
	if err != nil && c.failure.CompareAndSwap(nil, &err) {
		close(c.readEnded)
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if c.closing.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(b)
	if err != nil && !c.unread && !c.closing.Load() {
		t := time.NewTimer(answerTime)
		defer t.Stop()
		select {
		case <-c.readEnded:
		case <-t.C:
		}
	}
	return n, err
}

// CloseWrite ends what goes to the origin.
func (c *conn) CloseWrite() error {
	c.wroteEnd.Store(true)
	return c.Conn.CloseWrite()
}

// Close gives the connection up: cleanly if nothing runs on it, else at once, so that the origin
// notices.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.closing.Store(true)
		c.pool.forget(c)
		err := c.ended()
		switch {
		case c.busy.Load() == 0 && err == nil:
			_ = c.CloseWrite() // Close follows whatever it says
			go c.part()
		case c.wroteEnd.Load() && errors.Is(err, io.EOF):
			c.closeError = c.Conn.Close()
		case c.busy.Load() == 0 && errors.Is(err, io.EOF):
			_ = c.CloseWrite() // as above
			c.closeError = c.Conn.Close()
		default:
			c.Abort()
		}
	})
	return c.closeError
}

// part waits for the origin's end of an idle connection. The transport reads until then, if there is
// one.
func (c *conn) part() {
	if c.unread {
		_ = c.SetReadDeadline(time.Now().Add(partingTime))
		_, _ = io.Copy(io.Discard, c.Conn)
		_ = c.Conn.Close()
		return
	}
	t := time.NewTimer(partingTime)
	defer t.Stop()
	select {
	case <-c.readEnded:
	case <-t.C:
	}
	_ = c.Conn.Close()
}

// ended is the error that ended reading, nil before.
func (c *conn) ended() error {
	if e := c.failure.Load(); e != nil {
		return *e
	}
	return nil
}

// refusal is the agent's refusal of the stream, nil if it was not refused.
func (c *conn) refusal() *reason.Error {
	var e *reason.Error
	if errors.As(c.ended(), &e) {
		return e
	}
	return nil
}
