// Package reason holds the fixed list of reason codes that visitors' pages, logs, metrics,
// status and the CLI share, and the error type that carries one.
package reason

import (
	"errors"
	"fmt"
	"net/http"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Code is one reason. The list is fixed: docs/reference/reasons.md explains each.
type Code string

// Codes of the data path, seen by visitors.
const (
	BadRequest       Code = "bad_request"
	AccessRequired   Code = "access_required"
	AccessDenied     Code = "access_denied"
	OriginDenied     Code = "origin_denied"
	NoRoute          Code = "no_route"
	VisitorTimeout   Code = "visitor_timeout"
	TooLarge         Code = "too_large"
	WrongHost        Code = "wrong_host"
	WrongEdge        Code = "wrong_edge"
	RateLimited      Code = "rate_limited"
	Internal         Code = "internal"
	OriginRefused    Code = "origin_refused"
	OriginUnresolved Code = "origin_unresolved"
	OriginTLS        Code = "origin_tls"
	OriginProtocol   Code = "origin_protocol"
	NoAgent          Code = "no_agent"
	AgentDraining    Code = "agent_draining"
	GateUnavailable  Code = "gate_unavailable"
	OriginTimeout    Code = "origin_timeout"
	LoopDetected     Code = "loop_detected"
	// ClientClosed is logged when the visitor went away (499); no visitor sees it.
	ClientClosed Code = "client_closed"
)

// Codes of sessions and of the hub, seen by agents, edges and the CLI.
const (
	OK                 Code = "ok"
	Pending            Code = "pending"
	GrantMissing       Code = "grant_missing"
	NameConflict       Code = "name_conflict"
	PortConflict       Code = "port_conflict"
	PortUnavailable    Code = "port_unavailable"
	Invalid            Code = "invalid"
	TokenUnknown       Code = "token_unknown"
	TokenRevoked       Code = "token_revoked"
	TokenExpired       Code = "token_expired"
	TokenWrongKind     Code = "token_wrong_kind"
	ProofInvalid       Code = "proof_invalid"
	TooManyReplicas    Code = "too_many_replicas"
	SourceDenied       Code = "source_denied"
	VersionUnsupported Code = "version_unsupported"
	SessionUnknown     Code = "session_unknown"
	Superseded         Code = "superseded"
	Draining           Code = "draining"
	HubUnreachable     Code = "hub_unreachable"
	StoreUnavailable   Code = "store_unavailable"
	NotFound           Code = "not_found"
	// VersionConflict: two writers, and the other one was first. InUse: others depend on it.
	VersionConflict Code = "version_conflict"
	InUse           Code = "in_use"
	// Standby: another process holds the enrolment. Disabled: switched off.
	Standby         Code = "standby"
	Disabled        Code = "disabled"
	Unauthenticated Code = "unauthenticated"
)

// Hops of a request, in order.
const (
	HopVisitor = "visitor"
	HopEdge    = "edge"
	HopHub     = "hub"
	HopAgent   = "agent"
	HopOrigin  = "origin"
)

var status = map[Code]int{
	BadRequest: 400, AccessRequired: 401, AccessDenied: 403, OriginDenied: 403, NoRoute: 404,
	VisitorTimeout: 408, TooLarge: 413, WrongHost: 421, WrongEdge: 421, RateLimited: 429,
	Internal: 500, OriginRefused: 502, OriginUnresolved: 502, OriginTLS: 502, OriginProtocol: 502,
	NoAgent: 503, AgentDraining: 503, GateUnavailable: 503, OriginTimeout: 504, LoopDetected: 508,
	ClientClosed: 499,
}

// HTTPStatus is the status a visitor gets for c; 500 for a code that visitors never see.
func (c Code) HTTPStatus() int {
	if s, ok := status[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is a failure with its reason, the hop that failed and the remedy.
type Error struct {
	Code Code
	// Hop is one of the Hop constants.
	Hop string
	// Detail is one sentence for people: field, value, remedy. Never a secret.
	Detail string
	// Untouched is true when it is certain that nothing reached the origin.
	Untouched bool
	// Err is the cause, if any.
	Err error
}

// New makes an Error with a formatted detail.
func New(code Code, hop, format string, args ...any) *Error {
	return &Error{Code: code, Hop: hop, Detail: fmt.Sprintf(format, args...)}
}

// Wrap is New with a cause.
func Wrap(err error, code Code, hop, format string, args ...any) *Error {
	e := New(code, hop, format, args...)
	e.Err = err
	return e
}

// Safe marks e as raised before anything reached the origin and returns it.
func (e *Error) Safe() *Error { e.Untouched = true; return e }

func (e *Error) Error() string {
	s := string(e.Code)
	if e.Hop != "" {
		s += " at " + e.Hop
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Of returns the Error in err's chain, or an Internal one at hop that wraps err.
func Of(err error, hop string) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Hop: hop, Err: err}
}

// Is reports whether err carries code.
func Is(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Refusal is e as it goes over the wire; the cause becomes part of the detail.
func (e *Error) Refusal() *wirev1.Refusal {
	d := e.Detail
	if e.Err != nil {
		if d != "" {
			d += ": "
		}
		d += e.Err.Error()
	}
	if len(d) > 1024 {
		d = d[:1024]
	}
	return &wirev1.Refusal{Reason: string(e.Code), Hop: e.Hop, Detail: d, Untouched: e.Untouched}
}

// FromRefusal is the inverse of Refusal.
func FromRefusal(r *wirev1.Refusal) *Error {
	return &Error{Code: Code(r.GetReason()), Hop: r.GetHop(), Detail: r.GetDetail(), Untouched: r.GetUntouched()}
}
