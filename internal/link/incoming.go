package link

import (
	"context"
	"errors"
	"sync"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// incoming is a stream that the agent was asked to serve.
type incoming struct {
	st     rawStream
	header *wirev1.StreamHeader

	mu       sync.Mutex
	answered bool
	refused  bool
}

var errAnswered = errors.New("stream is answered already")

// Header implements Incoming.
func (in *incoming) Header() *wirev1.StreamHeader { return in.header }

func (in *incoming) answer(a *wirev1.StreamAnswer) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.answered {
		return errAnswered
	}
	in.answered = true
	if st, ok := in.st.(*laneStream); ok && st.answer != nil {
		return st.answer(a)
	}
	b, err := wire.AppendFrame(nil, a, wire.MaxHeader)
	if err != nil {
		return err
	}
	_, err = in.st.Write(b)
	return err
}

// Accept implements Incoming.
func (in *incoming) Accept(alpn string) (Stream, error) {
	if err := in.answer(&wirev1.StreamAnswer{Alpn: alpn}); err != nil {
		if !errors.Is(err, errAnswered) {
			in.st.Abort()
		}
		return nil, err
	}
	return in.st, nil
}

// Refuse implements Incoming.
func (in *incoming) Refuse(e *reason.Error) {
	if err := in.answer(&wirev1.StreamAnswer{Refusal: e.Refusal()}); err != nil {
		if !errors.Is(err, errAnswered) {
			in.st.Abort()
		}
		return
	}
	_ = in.st.CloseWrite()
	in.st.refused()
	in.mu.Lock()
	in.refused = true
	in.mu.Unlock()
}

// close ends the stream after its handler returned; a refused one ends by itself.
func (in *incoming) close() {
	in.mu.Lock()
	refused := in.refused
	in.mu.Unlock()
	if !refused {
		_ = in.st.Close()
	}
}

// serveIncoming reads the header of st and has h serve it; it returns when h did.
func serveIncoming(parent context.Context, p *pair, st rawStream, h Handler) {
	_ = st.SetReadDeadline(time.Now().Add(p.timing.dial))
	header, err := wire.ReadHeader(st)
	if err != nil {
		p.log.Debug("stream without a valid header", "error", err)
		st.Abort()
		return
	}
	_ = st.SetReadDeadline(time.Time{})
	serveHeader(parent, p, st, header, h)
}

func serveHeader(parent context.Context, p *pair, st rawStream, header *wirev1.StreamHeader, h Handler) {
	in := &incoming{st: st, header: header}
	if header.Kind == wirev1.Kind_KIND_UDP {
		if s, err := in.Accept(""); err == nil {
			p.flows.stream(s, header)
		}
		_ = st.Close()
		return
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer st.onPeerAbort(cancel)()
	h.ServeStream(ctx, in)
	in.Refuse(reason.New(reason.Internal, reason.HopAgent, "the agent did not answer the stream").Safe())
	in.close()
}
