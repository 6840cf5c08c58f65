package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// ringLines is how many lines a Ring keeps; lineRunes is the length of one.
	ringLines = 2000
	lineRunes = 2000
)

// Line is one line of a log, without secrets.
type Line struct {
	At    time.Time
	Level string
	// Text is the message and its attributes, at most 2,000 characters.
	Text string
}

// Ring keeps the last 2,000 lines of a log for whoever asks, redacted as they come in.
type Ring struct {
	mu    sync.Mutex
	lines []Line
	// last is the position of the newest line; the first line ever has 1.
	last uint64
	// moved is closed when a line comes.
	moved chan struct{}
}

// NewRing returns an empty ring.
func NewRing() *Ring { return &Ring{moved: make(chan struct{})} }

func (r *Ring) add(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) < ringLines {
		r.lines = append(r.lines, l)
	} else {
		r.lines[r.last%ringLines] = l
	}
	r.last++
	close(r.moved)
	r.moved = make(chan struct{})
}

// After returns up to n lines behind a position: the newest n with after 0, else the oldest. The
// position is that of the last line returned; lost is true when lines between are gone, or were
// left out.
func (r *Ring) After(after uint64, n int) (lines []Line, position uint64, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.last - uint64(len(r.lines)) // the position before the oldest line
	from := after
	switch {
	case after == 0 && r.last > uint64(n):
		from = r.last - uint64(n)
		lost = true
	case after > r.last:
		// The position is one of another process.
		from = first
		lost = true
	}
	if from < first {
		from, lost = first, true
	}
	to := min(r.last, from+uint64(n))
	for p := from; p < to; p++ {
		lines = append(lines, r.lines[p%ringLines])
	}
	return lines, to, lost
}

// Wait returns when there is a line behind a position, or ctx has ended.
func (r *Ring) Wait(ctx context.Context, after uint64) {
	for {
		r.mu.Lock()
		last, moved := r.last, r.moved
		r.mu.Unlock()
		if last > after || after > last {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		}
	}
}

// Tee returns a logger whose records also go to r, from the level of l on.
func (r *Ring) Tee(l *slog.Logger) *slog.Logger {
	return slog.New(&ringHandler{next: l.Handler(), ring: r, text: newLineWriter()})
}

// ringHandler passes records on and keeps them as lines.
type ringHandler struct {
	next slog.Handler
	ring *Ring
	text *lineWriter
}

func (h *ringHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *ringHandler) Handle(ctx context.Context, rec slog.Record) error {
	h.ring.add(Line{At: rec.Time, Level: strings.ToLower(rec.Level.String()), Text: shortenLine(Redact(h.text.format(ctx, rec)))})
	return h.next.Handle(ctx, rec)
}

func (h *ringHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &ringHandler{next: h.next.WithAttrs(as), ring: h.ring, text: h.text.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(as) })}
}

func (h *ringHandler) WithGroup(name string) slog.Handler {
	return &ringHandler{next: h.next.WithGroup(name), ring: h.ring, text: h.text.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })}
}

// lineWriter formats records as text, one at a time.
type lineWriter struct {
	shared *lineBuffer
	h      slog.Handler
}

type lineBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lineBuffer) Write(p []byte) (int, error) { return b.b.Write(p) }

func newLineWriter() *lineWriter {
	buf := &lineBuffer{}
	return &lineWriter{buf, slog.NewTextHandler(buf, &slog.HandlerOptions{Level: slog.Level(-128), ReplaceAttr: textOnly})}
}

// textOnly leaves out what a Line holds apart from its attributes.
func textOnly(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return a
}

func (w *lineWriter) with(f func(slog.Handler) slog.Handler) *lineWriter {
	return &lineWriter{w.shared, f(w.h)}
}

func (w *lineWriter) format(ctx context.Context, rec slog.Record) string {
	w.shared.mu.Lock()
	defer w.shared.mu.Unlock()
	w.shared.b.Reset()
	_ = w.h.Handle(ctx, rec)
	return strings.TrimSpace(rec.Message + " " + w.shared.b.String())
}

func shortenLine(s string) string {
	if len(s) <= lineRunes || utf8.RuneCountInString(s) <= lineRunes {
		return strings.ToValidUTF8(s, "�")
	}
	n := 0
	for i := range s {
		if n++; n == lineRunes {
			return strings.ToValidUTF8(s[:i], "�") + "…"
		}
	}
	return s
}
