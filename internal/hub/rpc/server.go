// Package rpc serves the hub API: machines behind an opening on adit-hub/1, people with a
// bearer key there and over HTTPS.
package rpc

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	"github.com/adit-dev/adit/api/openapi"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hublink"
)

// maxRequest bounds a request: a full list of declared tunnels fits.
const maxRequest = 8 << 20

// Server is the API of one hub.
type Server struct {
	api  http.Handler
	link *hublink.Server
}

// New returns the API of h. Revocations at h close the connections of their token.
func New(h *hub.Hub) *Server {
	cfg := h.Config()
	mux, g := http.NewServeMux(), newGuard(h)
	s := &Server{api: g.before(mux)}
	opts := []connect.HandlerOption{
		connect.WithInterceptors(g),
		connect.WithReadMaxBytes(maxRequest),
		withStrictJSON(),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			cfg.Log.Error("panic in the hub API", "procedure", spec.Procedure, "panic", fmt.Sprint(p))
			return connect.NewError(connect.CodeInternal, errInternal)
		}),
	}
	mux.Handle(hubv1connect.NewMachineServiceHandler(machines{h}, opts...))
	mux.Handle(hubv1connect.NewInviteServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewTunnelServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewAgentServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewPortServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewEdgeServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewServerServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewTenantServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewAccessServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewPolicyServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewUserServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewSessionServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewKeyServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewProviderServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewDeviceServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewAuditServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewEventServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewNoticeServiceHandler(people{hub: h}, opts...))
	mux.Handle(hubv1connect.NewTrafficServiceHandler(people{hub: h}, opts...))
	s.link = hublink.NewServer(hublink.ServerConfig{
		Key: h.Key(), Credential: h.Credential, Known: h.Known, Admit: h.Admit, Handler: s.api, Now: cfg.Now, Log: cfg.Log,
	})
	h.OnRevoke(s.link.CloseToken)
	return s
}

// Link takes connections under ALPN adit-hub/1, and WebSockets at /.adit/hub.
func (s *Server) Link() *hublink.Server { return s.link }

// Handler serves the hub host over HTTPS: the API for people (bearer key), its OpenAPI document
// and /.adit/hub.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi.Document)
	})
	mux.Handle("/", s.api)
	mux.Handle(hublink.Path, s.link)
	return mux
}
