package rpc

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/reason"
)

// guard stands before every procedure: it admits the caller, counts, and turns errors into what
// callers understand.
type guard struct {
	hub      *hub.Hub
	requests *prometheus.CounterVec
}

func newGuard(h *hub.Hub) *guard {
	g := &guard{hub: h, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "adit_hub_requests_total", Help: "Calls of the hub API by procedure and result.",
	}, []string{"procedure", "code"})}
	if r := h.Config().Registry; r != nil {
		r.MustRegister(g.requests)
	}
	return g
}

type admittedKey struct{}

// before admits callers by what the request's header says, so that nothing of a stranger's body
// is read. What it has not admitted no procedure serves.
func (g *guard) before(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := access[r.URL.Path]; !ok {
			next.ServeHTTP(w, r)
			return
		}
		a, err := g.admit(r.Context(), r.URL.Path, r.Header, r.RemoteAddr)
		ctx := hub.WithActor(r.Context(), a)
		if err != nil {
			if a.Name != "" || r.Header.Get("Authorization") != "" {
				g.refused(ctx, r.URL.Path, err)
			}
			_ = refuse.Write(w, r, g.done(r.URL.Path, err))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, admittedKey{}, r.URL.Path)))
	})
}

// admitted is the second look, behind the routing.
func admitted(ctx context.Context, procedure string) error {
	if ctx.Value(admittedKey{}) != procedure {
		return reason.New(reason.AccessDenied, reason.HopHub, "%s is not open to anybody", procedure)
	}
	return nil
}

// WrapUnary implements connect.Interceptor.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		var resp connect.AnyResponse
		err := admitted(ctx, req.Spec().Procedure)
		if err == nil {
			describe(hub.ActorFrom(ctx), req.Spec().Procedure, req.Any())
			if err = wellFormed(req); err == nil {
				resp, err = next(ctx, req)
			}
			nameField(err, req.Any())
			g.hub.Finished(ctx, err)
		}
		if err = g.done(req.Spec().Procedure, err); err != nil {
			return nil, err
		}
		return resp, nil
	}
}

// wellFormed checks what people sent. What machines may send is theirs to check: a text of theirs that is
// too long must not cost the rest of a report.
func wellFormed(req connect.AnyRequest) error {
	m, ok := req.Any().(proto.Message)
	if !ok || len(access[req.Spec().Procedure].machines) > 0 {
		return nil
	}
	if p := checkFields(m); p != nil {
		return p
	}
	return nil
}

// nameField says which field of the request named what there is not.
func nameField(err error, request any) {
	var p *hub.Problem
	if m, ok := request.(proto.Message); ok && m != nil && errors.As(err, &p) && p.Code == reason.NotFound && p.Field == "" {
		p.Field = namedBy(m, p.Value)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := admitted(ctx, conn.Spec().Procedure)
		if err == nil {
			err = g.stream(ctx, conn, next)
		}
		return g.done(conn.Spec().Procedure, err)
	}
}

// admit tells who calls, and whether they may call procedure.
func (g *guard) admit(ctx context.Context, procedure string, header http.Header, peer string) (*hub.Actor, error) {
	need := access[procedure]
	a := &hub.Actor{}
	if ap, err := netip.ParseAddrPort(peer); err == nil {
		a.From = ap.Addr().Unmap()
	}
	caller, machine := hublink.CallerFrom(ctx)
	switch {
	case len(need.machines) > 0 && !machine:
		return a, reason.New(reason.Unauthenticated, reason.HopHub, "%s is for agents and edges, which prove themselves with a token", procedure)
	case len(need.machines) > 0:
		if !slices.Contains(need.machines, caller.Role) {
			return a, reason.New(reason.AccessDenied, reason.HopHub, "%s is not for the role %s", procedure, caller.Role)
		}
		a.Name, a.Machine = caller.Credential.GetKind()+":"+caller.Credential.GetName(), true
		return a, nil
	case machine:
		return a, reason.New(reason.AccessDenied, reason.HopHub, "%s is for people with a key, not for tokens", procedure)
	case need.open:
		return a, nil
	}
	// Pages of the dashboard call as whoever signed in there.
	who, err := asSignedIn(ctx), error(nil)
	if who == nil {
		key, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
		if who, err = g.hub.Authenticate(ctx, strings.TrimSpace(key), a.From); who == nil {
			return a, err
		}
	}
	if err == nil {
		err = g.may(who, procedure)
	}
	return who, err
}

type signedInKey struct{}

// asSignedIn is who a page calls for; nil for calls from outside. Only this process can set it.
func asSignedIn(ctx context.Context) *hub.Actor {
	a, _ := ctx.Value(signedInKey{}).(*hub.Actor)
	if a == nil {
		return nil
	}
	// One actor is one call.
	one := *a
	one.What = ""
	return &one
}

// may tells whether a person may call procedure.
func (g *guard) may(a *hub.Actor, procedure string) error {
	need := access[procedure]
	denied := func(format string, args ...any) error {
		return reason.New(reason.AccessDenied, reason.HopHub, "%s "+format, append([]any{procedure}, args...)...)
	}
	switch {
	case !hub.RoleIncludes(a.Role, need.people):
		return denied("needs the role %s", need.people)
	case need.local && !a.Local:
		return denied("is possible on the server's own host only")
	case len(a.Scopes) > 0 && need.scope == noScope:
		return denied("is not for API keys with scopes")
	case len(a.Scopes) > 0 && need.scope != anyScope && !inScope(a.Scopes, need.scope):
		return denied("needs an API key with the scope %s", need.scope)
	case need.fresh && !a.Fresh(g.hub.Config().Now()):
		return denied("needs a sign-in that is younger than ten minutes; sign in again (adit login, or in the dashboard)")
	}
	return nil
}

// inScope tells whether one of scopes is want; ":write" includes ":read".
func inScope(scopes []string, want string) bool {
	thing, read := strings.CutSuffix(want, ":read")
	return slices.Contains(scopes, want) || read && slices.Contains(scopes, thing+":write")
}

// done counts a call and explains its error.
func (g *guard) done(procedure string, err error) error {
	code := "ok"
	var ce *connect.Error
	if err != nil {
		if !errors.As(err, &ce) {
			ce = explain(err)
			// What is wrong with the hub itself is for its operator to see.
			if ce.Code() == connect.CodeInternal || reason.Is(err, reason.StoreUnavailable) {
				g.hub.Config().Log.Error("hub API failed", "procedure", procedure, "reason", ce.Meta().Get(codeHeader), "error", err)
			}
		}
		code = ce.Code().String()
	}
	g.requests.WithLabelValues(procedure, code).Inc()
	if ce == nil {
		return nil
	}
	return ce
}
