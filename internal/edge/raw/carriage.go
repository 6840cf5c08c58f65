package raw

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/splice"
)

// carriage is one visitor connection and its stream.
type carriage struct {
	visitor *front.Conn
	stream  *dial.Conn
	tunnel  *hubv1.Tunnel
	replica string
	cancel  context.CancelFunc
	idle    time.Duration

	// in and out count bytes from and to the visitor.
	in, out atomic.Int64
	// half is set when one direction has ended: the other must keep moving then.
	half atomic.Bool
	watch
}

// run copies both ways until both directions ended (nil), or something aborts both.
func (k *carriage) run(ctx context.Context) *reason.Error {
	stop := context.AfterFunc(ctx, k.abort)
	defer stop()
	// The way out, below which TLS may lie, needs more stack; a new one is smaller than this.
	outbound := make(chan error, 1)
	go func() { outbound <- k.finish(k.copyOut(), k.endVisitor) }()
	inErr := k.finish(k.copyIn(), k.stream.CloseWrite)
	outErr := <-outbound
	return k.outcome(ctx, inErr, outErr)
}

// outcome is how both directions ended together.
func (k *carriage) outcome(ctx context.Context, inErr, outErr error) *reason.Error {
	if outErr == nil && inErr == nil {
		_ = k.stream.Close()
		return nil
	}
	// The stream's side knows the reason, if anybody does.
	var e *reason.Error
	if errors.As(inErr, &e) && !errors.As(outErr, &e) {
		outErr = inErr
	} else if outErr == nil {
		outErr = inErr
	}
	return endOf(ctx, outErr)
}

// finish ends one direction: cleanly, by passing the end on and giving the other direction its
// idle limit, or by aborting both.
func (k *carriage) finish(err error, closeWrite func() error) error {
	if err == nil {
		if err = closeWrite(); err == nil || gone(err) {
			k.half.Store(true)
			k.moved()
			return nil
		}
	}
	k.abort()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return reason.Wrap(err, reason.VisitorTimeout, reason.HopEdge, "one direction has ended and nothing moved in the other for %v", k.idle)
	}
	return err
}

// endVisitor passes the end of what the origin sent on. Where the visitor's end came before, closing
// the connection says the same.
func (k *carriage) endVisitor() error {
	if k.half.Load() {
		return nil
	}
	return k.visitor.CloseWrite()
}

// moved gives the direction that is left alone its next idle time, for reading and for writing.
func (k *carriage) moved() {
	if !k.half.Load() {
		return
	}
	t := time.Now().Add(k.idle)
	_ = k.visitor.SetDeadline(t)
	_ = k.stream.SetDeadline(t)
}

// gone reports an error of closing a direction that the other side has closed already.
func gone(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ENOTCONN)
}

// abort ends both sides at once; a blocked reader or writer of either returns.
func (k *carriage) abort() {
	k.stream.Abort()
	_ = k.visitor.Reset()
}

// copyIn carries the visitor's bytes to the stream. Neither direction holds a buffer while it waits.
func (k *carriage) copyIn() error {
	in := buffer.NewSocket(k.visitor.NetConn())
	var buf buffer.Loan
	defer buf.Return()
	for {
		if ok, err := k.spliceIn(); ok {
			return err
		}
		n, err := in.ReadLoan(&buf)
		if n > 0 {
			k.in.Add(int64(n))
			k.writing.Store(true)
			_, werr := k.stream.Write(buf.Bytes()[:n])
			k.writing.Store(false)
			buf.Return()
			if werr != nil {
				return werr
			}
			k.moved()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// atHand reads what the visitor has sent already, without waiting.
func (k *carriage) atHand(b []byte) (n int) {
	rc, err := k.socket()
	if err != nil {
		return 0
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), b)
		return true
	})
	if err != nil {
		return 0 // nothing yet, or what the next read will tell
	}
	return n
}

// socket is the visitor's.
func (k *carriage) socket() (syscall.RawConn, error) {
	sock, ok := k.visitor.NetConn().(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sock.SyscallConn()
}

// copyOut carries the origin's bytes to the visitor.
func (k *carriage) copyOut() error {
	if ok, err := k.spliceOut(); ok {
		return err
	}
	var buf buffer.Loan
	defer buf.Return()
	for {
		n, err := k.stream.ReadLoan(&buf)
		if n > 0 {
			k.sending.Store(true)
			_, werr := k.visitor.Write(buf.Bytes()[:n])
			k.sending.Store(false)
			k.out.Add(int64(n))
			buf.Return()
			if werr != nil {
				return werr
			}
			k.moved()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// spliceIn is copyIn within the kernel, where the stream has a socket and the agent has answered;
// ok is false otherwise.
func (k *carriage) spliceIn() (ok bool, err error) {
	sp, sock := k.splicer()
	if sp == nil {
		return false, nil
	}
	ok, rerr, werr := sp.SpliceFrom(sock, splice.Progress{Writing: &k.writing, Moved: func(n int) {
		k.in.Add(int64(n))
		k.moved()
	}})
	return ok, cmp.Or(rerr, werr)
}

// spliceOut is copyOut within the kernel.
func (k *carriage) spliceOut() (ok bool, err error) {
	sp, sock := k.splicer()
	if sp == nil {
		return false, nil
	}
	ok, rerr, werr := sp.SpliceTo(sock, splice.Progress{Writing: &k.sending, Moved: func(n int) {
		k.out.Add(int64(n))
		k.moved()
	}})
	return ok, cmp.Or(rerr, werr)
}

// splicer is the stream and the visitor's socket; nil when the kernel cannot copy between them.
func (k *carriage) splicer() (link.Splicer, *net.TCPConn) {
	sp, ok := k.stream.Stream.(link.Splicer)
	sock, tcp := k.visitor.NetConn().(*net.TCPConn)
	if !ok || !tcp {
		return nil, nil
	}
	return sp, sock
}
