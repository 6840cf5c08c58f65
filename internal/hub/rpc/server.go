// Package rpc serves the hub API: machines behind an opening on adit-hub/1, people with a
// bearer key there and over HTTPS.
package rpc

import (
	"net/http"

	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hublink"
)

// Server is the API of one hub.
type Server struct{}

// New returns the API of h.
func New(h *hub.Hub) *Server { panic("unbuilt") }

// Link takes connections under ALPN adit-hub/1, and WebSockets at /.adit/hub.
func (s *Server) Link() *hublink.Server { panic("unbuilt") }

// Handler serves the hub host over HTTPS: the API for people (bearer key) and /.adit/hub.
func (s *Server) Handler() http.Handler { panic("unbuilt") }
