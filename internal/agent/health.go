package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/adit-dev/adit/internal/telemetry"
)

// listenHealth binds the health address.
func (a *Agent) listenHealth(ctx context.Context) (net.Listener, error) {
	if a.cfg.HealthAddr == "" {
		return nil, nil
	}
	l, err := telemetry.ListenAdmin(ctx, a.cfg.HealthAddr)
	if err != nil && a.cfg.HealthFallback && errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(a.cfg.HealthAddr)
		busy := err
		if l, err = telemetry.ListenAdmin(ctx, net.JoinHostPort(host, "0")); err == nil {
			a.log.Warn("the health address is busy, another one is used", "wanted", a.cfg.HealthAddr, "used", l.Addr().String(), "error", busy)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--health-addr %s: %w; choose another address, or port 0 for any free one", a.cfg.HealthAddr, err)
	}
	return l, nil
}

// healthHandler serves /healthz (this process), /readyz (can visitors be served) and /metrics.
func (a *Agent) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := a.Status()
		w.Header().Set("Content-Type", "application/json")
		if !s.Ready || s.Draining {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(s)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.cfg.Registry, promhttp.HandlerOpts{}))
	if a.cfg.PProf {
		telemetry.RegisterPProf(mux)
	}
	return mux
}

func (a *Agent) serveHealth(l net.Listener) (stop func()) {
	srv := &http.Server{Handler: a.healthHandler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("health address", "error", err)
		}
	}()
	return func() {
		_ = srv.Close()
		<-done
	}
}
