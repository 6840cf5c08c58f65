package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/adit-dev/adit/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLog(t *testing.T) {
	var out bytes.Buffer
	l := telemetry.NewLog(telemetry.LogConfig{Output: &out, Level: "warn"})
	l.Info("quiet")
	l.Warn("loud", "port", 443)
	l.Close()
	l.Warn("after the end")
	var line struct {
		Level, Msg string
		Port       int
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("not one JSON line: %v in %q", err, out.String())
	}
	if line.Level != "WARN" || line.Msg != "loud" || line.Port != 443 {
		t.Errorf("%+v", line)
	}
	out.Reset()
	l = telemetry.NewLog(telemetry.LogConfig{Output: &out, Format: "text"})
	l.Info("hello")
	l.Close()
	if !strings.Contains(out.String(), "level=INFO msg=hello") {
		t.Errorf("text: %q", out.String())
	}
}

func TestJSONHoldsAddressesAndDurationsAsText(t *testing.T) {
	var out bytes.Buffer
	log := telemetry.NewLog(telemetry.LogConfig{Format: "json", Output: &out})
	var none *net.TCPAddr
	log.Info("m", "peer", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}, "none", none, "err", errors.New("broken"),
		"took", 1500*time.Millisecond, slog.Group("in", "pause", time.Minute))
	log.Close()
	for _, want := range []string{`"peer":"127.0.0.1:7"`, `"none":null`, `"err":"broken"`, `"took":"1.5s"`, `"pause":"1m0s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}

func TestBlockedPipe(t *testing.T) {
	t.Run("O02 a reader that stops reading the log stops nothing else", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		reg := prometheus.NewRegistry()
		l := telemetry.NewLog(telemetry.LogConfig{Output: w, Registry: reg})
		text := strings.Repeat("x", 1000)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 20000 {
				l.Info(text)
			}
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("logging blocks")
		}
		if l.Dropped() == 0 {
			t.Error("20 MB went into a pipe that nobody reads")
		}
		got, err := reg.Gather()
		if err != nil || len(got) != 1 || got[0].GetName() != "adit_log_lines_dropped_total" || got[0].GetMetric()[0].GetCounter().GetValue() == 0 {
			t.Errorf("metrics %v, %v", got, err)
		}
		// A stuck reader costs Close a second at most.
		start := time.Now()
		l.Close()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("Close took %s", d)
		}
		r.Close()
		w.Close()
	})
}

func TestMetrics(t *testing.T) {
	w := httptest.NewRecorder()
	telemetry.MetricsHandler(telemetry.NewRegistry()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`adit_build_info{version="` + telemetry.Version() + `"} 1`, "go_goroutines", "process_open_fds"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in /metrics", want)
		}
	}
	if telemetry.Version() == "" {
		t.Error("no version")
	}
}
