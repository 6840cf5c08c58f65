package hub

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/reason"
)

// Roles of people, each with all that the next one may do.
const (
	RoleOwner  = "owner"
	RoleAdmin  = "admin"
	RoleViewer = "viewer"
	// RoleVisitor may only pass gates, and ask who they are.
	RoleVisitor = "visitor"
)

// freshFor is how old a sign-in may be for procedures that want a fresh one.
const freshFor = 10 * time.Minute

var roleRank = map[string]int{RoleVisitor: 1, RoleViewer: 2, RoleAdmin: 3, RoleOwner: 4}

// RoleIncludes tells whether a role may do all that another may. An unknown role includes nothing.
func RoleIncludes(role, other string) bool {
	return roleRank[role] > 0 && roleRank[other] > 0 && roleRank[role] >= roleRank[other]
}

// Actor is who makes a call, with what credential, from where; and which call it is. One is made
// for each call; it travels in the context.
type Actor struct {
	// Name as audits say it: a user's name, "key:NAME@USER", "local-admin@HOST", or the name of a
	// machine's token. "hub" is the hub itself.
	Name string
	// UserID is the person's; empty for the server's own host and for machines.
	UserID string
	// UserName is the person's name without the key; empty as UserID is.
	UserName string
	// Role is the person's; empty for machines.
	Role string
	// SignInID is the sign-in, KeyID the key that the call was made with; one or none is set.
	SignInID, KeyID string
	// Scopes and Hosts are those of the key; none = whatever the role may.
	Scopes, Hosts []string
	// SignedIn is when the person signed in; zero for a key that was made, not signed in for.
	SignedIn time.Time
	// Local is true for admin.key.
	Local bool
	// From is where the call comes from.
	From netip.Addr

	// What is the procedure, as TunnelService/CreateTunnel, or the page's action, as sign_in. A call
	// without it is not audited.
	What string
	// Subject is what it is done to, Detail the request without secrets, as JSON.
	Subject, Detail string
	// Machine is true for agents, edges and operators: their calls are audited where they change
	// something that edges and agents hear of.
	Machine bool

	// recorded is true once a row of this call was stored.
	recorded bool
}

type actorKey struct{}

// hubItself is the actor of work that nobody asked for.
var hubItself = Actor{Name: "hub"}

// WithActor puts a into the context of its call.
func WithActor(ctx context.Context, a *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom is who makes the call; never nil. Work of the hub itself has an actor without user and
// role.
func ActorFrom(ctx context.Context) *Actor {
	if a, ok := ctx.Value(actorKey{}).(*Actor); ok {
		return a
	}
	a := hubItself
	return &a
}

// Fresh tells whether the sign-in is young enough for what wants a fresh one.
func (a *Actor) Fresh(now time.Time) bool {
	return a.Local || !a.SignedIn.IsZero() && now.Sub(a.SignedIn) < freshFor
}

// MayWrite refuses a write to a name outside the host patterns of the caller's key. Writes of what
// has no hostname (tcp and udp) pass host "" and are refused to a key with patterns. Host may be a
// pattern itself: then all of it must be inside one.
func (a *Actor) MayWrite(field, host string) error {
	if len(a.Hosts) == 0 {
		return nil
	}
	if p, err := hostname.Parse(host); err == nil {
		for _, h := range a.Hosts {
			if mine, err := hostname.Parse(h); err == nil && mine.Covers(p) {
				return nil
			}
		}
	}
	return &Problem{Code: reason.AccessDenied, Field: field, Value: host, Text: "the API key is limited to " + strings.Join(a.Hosts, ", "),
		Remedy: "use a name that one of these covers, or a key without this limit"}
}
