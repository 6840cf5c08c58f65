// Package telemetry sets up logs and metrics for every program, and knows the version.
package telemetry

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/term"
)

// LogConfig says how to log.
type LogConfig struct {
	// Level is debug, info (default), warn or error; Format is text or json, empty = text on a
	// terminal, else json. Durations are text in both, as Go writes them: "1.5s", "250ms", "2m0s".
	Level, Format string
	// Output is where lines go; nil = standard error.
	Output io.Writer
	// Registry gets adit_log_lines_dropped_total; may be nil.
	Registry prometheus.Registerer
}

// Log is a logger whose lines are written by a goroutine of its own, so that a reader who stops
// reading stalls nobody: what does not fit the queue is dropped and counted.
type Log struct {
	*slog.Logger
	w *asyncWriter
}

// NewLog starts a logger; Close ends it.
func NewLog(cfg LogConfig) *Log {
	out := cfg.Output
	if out == nil {
		out = os.Stderr
	}
	w := newAsyncWriter(out)
	opts := &slog.HandlerOptions{Level: level(cfg.Level), ReplaceAttr: shorten}
	var h slog.Handler
	if cfg.Format == "json" || cfg.Format == "" && !IsTerminal(out) {
		opts.ReplaceAttr = readable
		h = slog.NewJSONHandler(w, opts)
	} else {
		h = slog.NewTextHandler(w, opts)
	}
	if cfg.Registry != nil {
		cfg.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "adit_log_lines_dropped_total", Help: "Log lines dropped because the reader of the log did not keep up.",
		}, func() float64 { return float64(w.dropped.Load()) }))
	}
	return &Log{Logger: slog.New(h), w: w}
}

// Close writes what is queued, for at most a second if the reader is stuck.
func (l *Log) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l.w.close(ctx)
}

// Dropped is the number of lines lost so far.
func (l *Log) Dropped() uint64 { return l.w.dropped.Load() }

func level(s string) slog.Level {
	var l slog.Level
	if s == "" || l.UnmarshalText([]byte(s)) != nil {
		return slog.LevelInfo
	}
	return l
}

// readable has JSON hold durations, addresses and the like as people write them, not as counts of
// nanoseconds or field by field.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, a.Value.Duration().String())
	case slog.KindAny:
	default:
		return a
	}
	switch v := a.Value.Any().(type) {
	case error, json.Marshaler, encoding.TextMarshaler:
	case fmt.Stringer:
		if r := reflect.ValueOf(v); r.Kind() != reflect.Pointer || !r.IsNil() {
			a.Value = slog.StringValue(v.String())
		}
	}
	return a
}

// shorten makes the time of day enough for people at a terminal.
func shorten(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.String(slog.TimeKey, a.Value.Time().Format(time.TimeOnly))
	}
	return a
}

// IsTerminal tells whether people read what is written to w.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

const (
	queueLines = 4096
	queueBytes = 4 << 20
)

type asyncWriter struct {
	out     io.Writer
	lines   chan []byte
	bytes   atomic.Int64
	dropped atomic.Uint64
	// mu guards closed against sends on a closed channel.
	mu     sync.RWMutex
	closed bool
	done   chan struct{}
}

func newAsyncWriter(out io.Writer) *asyncWriter {
	w := &asyncWriter{out: out, lines: make(chan []byte, queueLines), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *asyncWriter) run() {
	defer close(w.done)
	for line := range w.lines {
		w.bytes.Add(-int64(len(line)))
		if _, err := w.out.Write(line); err != nil {
			w.dropped.Add(1)
		}
	}
}

// Write queues a copy of p and never blocks.
func (w *asyncWriter) Write(p []byte) (int, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed || w.bytes.Load()+int64(len(p)) > queueBytes {
		w.dropped.Add(1)
		return len(p), nil
	}
	line := append([]byte(nil), p...)
	w.bytes.Add(int64(len(line)))
	select {
	case w.lines <- line:
	default:
		w.bytes.Add(-int64(len(line)))
		w.dropped.Add(1)
	}
	return len(p), nil
}

func (w *asyncWriter) close(ctx context.Context) {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.lines)
	}
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}
