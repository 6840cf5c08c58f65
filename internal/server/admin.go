package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/telemetry"
)

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool   `json:"ready"`
	Draining bool   `json:"draining,omitempty"`
	Hub      string `json:"hub,omitempty"`
	Edge     string `json:"edge,omitempty"`
}

// admin is the listener for operators: metrics and health.
type admin struct {
	ln  net.Listener
	srv *http.Server
}

// listenAdmin binds addr. A busy default address is replaced by a free port, which is logged:
// two servers on one host need no flag for it.
func listenAdmin(ctx context.Context, addr string, isDefault bool, log *slog.Logger) (net.Listener, error) {
	ln, err := telemetry.ListenAdmin(ctx, addr)
	if err == nil {
		return ln, nil
	}
	if !isDefault || !errors.Is(err, syscall.EADDRINUSE) {
		return nil, NewBindError("listen-admin", "tcp", addr, err)
	}
	host, _, _ := net.SplitHostPort(addr)
	ln, err = telemetry.ListenAdmin(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, NewBindError("listen-admin", "tcp", addr, err)
	}
	log.Warn("the default admin address is in use; a free port was taken", "busy", addr, "address", ln.Addr().String(), "flag", "--listen-admin")
	return ln, nil
}

func newAdmin(ln net.Listener, reg *prometheus.Registry, pprof bool, ready func() readiness) *admin {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", telemetry.MetricsHandler(reg))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := ready()
		w.Header().Set("Content-Type", "application/json")
		if !r.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(r)
	})
	if pprof {
		telemetry.RegisterPProf(mux)
	}
	return &admin{ln: ln, srv: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}}
}

func (a *admin) serve() error {
	if err := a.srv.Serve(a.ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (a *admin) close(ctx context.Context) error {
	if err := a.srv.Shutdown(ctx); err != nil {
		return a.srv.Close()
	}
	return nil
}
