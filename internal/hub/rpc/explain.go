package rpc

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

// codeHeader carries the reason code of an error, as on visitors' pages.
const codeHeader = "Adit-Error"

var errInternal = errors.New("the hub failed; its log says more")

var codes = map[reason.Code]connect.Code{
	reason.Invalid:          connect.CodeInvalidArgument,
	reason.NotFound:         connect.CodeNotFound,
	reason.NameConflict:     connect.CodeAlreadyExists,
	reason.PortConflict:     connect.CodeAlreadyExists,
	reason.Unauthenticated:  connect.CodeUnauthenticated,
	reason.TokenUnknown:     connect.CodeUnauthenticated,
	reason.TokenRevoked:     connect.CodeUnauthenticated,
	reason.TokenExpired:     connect.CodeUnauthenticated,
	reason.AccessDenied:     connect.CodePermissionDenied,
	reason.SourceDenied:     connect.CodePermissionDenied,
	reason.VersionConflict:  connect.CodeAborted,
	reason.InUse:            connect.CodeFailedPrecondition,
	reason.Disabled:         connect.CodePermissionDenied,
	reason.TooManyReplicas:  connect.CodeResourceExhausted,
	reason.RateLimited:      connect.CodeResourceExhausted,
	reason.NoAgent:          connect.CodeFailedPrecondition,
	reason.TooLarge:         connect.CodeResourceExhausted,
	reason.OriginDenied:     connect.CodePermissionDenied,
	reason.StoreUnavailable: connect.CodeUnavailable,
	reason.Draining:         connect.CodeUnavailable,
}

// explain turns an error of the hub into one of the API. What the hub did not mean to say stays
// in its log.
func explain(err error) *connect.Error {
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	}
	detail := &hubv1.Problem{}
	text := ""
	var p *hub.Problem
	var e *reason.Error
	switch {
	case errors.As(err, &p):
		text = p.Error()
		detail = &hubv1.Problem{Code: string(p.Code), Field: p.Field, Value: p.Value, Remedy: p.Remedy, Holder: p.Holder, Held: p.Held}
	case errors.As(err, &e) && codes[e.Code] != 0:
		text = e.Detail
		detail.Code = string(e.Code)
	default:
		detail.Code = string(reason.Internal)
	}
	code, ok := codes[reason.Code(detail.Code)]
	if !ok {
		code, text = connect.CodeInternal, errInternal.Error()
	}
	ce := connect.NewError(code, errors.New(text))
	ce.Meta().Set(codeHeader, detail.Code)
	if d, derr := connect.NewErrorDetail(detail); derr == nil {
		ce.AddDetail(d)
	}
	return ce
}
