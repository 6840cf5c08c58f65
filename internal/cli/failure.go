package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// Exit codes: promises to scripts.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitCredential  = 3
	exitNotFound    = 4
	exitUnreachable = 5
)

// failure is an error with all that people and scripts get to know of it.
type failure struct {
	Text string `json:"error"`
	Code string `json:"code"`
	Hint string `json:"hint"`
	Exit int    `json:"-"`
	// usage is the command whose --help would have helped.
	usage string
	err   error
}

func (f *failure) Error() string { return f.Text }
func (f *failure) Unwrap() error { return f.err }

func usageError(err error) error {
	return &failure{Text: err.Error(), Code: "usage", Exit: exitUsage, err: err}
}

func usageErrorf(format string, args ...any) error { return usageError(fmt.Errorf(format, args...)) }

func failWith(exit int, code, hint, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &failure{Text: err.Error(), Code: code, Hint: hint, Exit: exit, err: errors.Unwrap(err)}
}

// exitOfReason gives those reasons an exit code that are not a plain failure.
var exitOfReason = map[reason.Code]int{
	reason.Unauthenticated: exitCredential, reason.TokenUnknown: exitCredential, reason.TokenRevoked: exitCredential,
	reason.TokenExpired: exitCredential, reason.TokenWrongKind: exitCredential, reason.ProofInvalid: exitCredential,
	reason.AccessDenied: exitCredential, reason.SourceDenied: exitCredential,
	reason.NotFound: exitNotFound, reason.HubUnreachable: exitUnreachable, reason.Invalid: exitUsage,
}

// failureOf classifies any error.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var re *reason.Error
	if errors.As(err, &re) {
		exit, ok := exitOfReason[re.Code]
		if !ok {
			exit = exitFailed
		}
		text := re.Detail
		if text == "" {
			text = re.Error()
		}
		return &failure{Text: text, Code: string(re.Code), Exit: exit, err: err}
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return failureOfRPC(ce)
	}
	// cobra has no type for an unknown command.
	if strings.HasPrefix(err.Error(), "unknown command ") {
		return &failure{Text: err.Error(), Code: "usage", Exit: exitUsage, err: err}
	}
	return &failure{Text: err.Error(), Code: string(reason.Internal), Exit: exitFailed, err: err}
}

func failureOfRPC(ce *connect.Error) *failure {
	f := &failure{Text: ce.Message(), Exit: exitFailed, err: ce}
	code := reason.Internal
	switch ce.Code() {
	case connect.CodeInvalidArgument:
		f.Exit, code = exitUsage, reason.Invalid
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		f.Exit, code = exitCredential, reason.Unauthenticated
		f.Hint = "check the API key; on the server's host use --data-dir as the user that runs the server"
	case connect.CodeNotFound:
		f.Exit, code = exitNotFound, reason.NotFound
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		f.Exit, code = exitUnreachable, reason.HubUnreachable
		f.Hint = "is the server running? `adit doctor` tests the way to it"
	}
	f.Code = string(code)
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		if p, ok := v.(*hubv1.Problem); ok && p.GetCode() != "" {
			f.Code, f.Hint = p.GetCode(), p.GetRemedy()
		}
	}
	// The message of the hub ends with the remedy; here it has a line and a field of its own.
	if f.Hint != "" {
		f.Text = strings.TrimSuffix(f.Text, "; "+f.Hint)
	}
	return f
}

func (a *app) printFailure(f *failure, asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(a.Stderr).Encode(f)
		return
	}
	fmt.Fprintln(a.Stderr, "adit: "+strings.ReplaceAll(f.Text, "\n", "\nadit: "))
	if f.Hint != "" {
		fmt.Fprintln(a.Stderr, "      "+f.Hint)
	}
	if f.usage != "" {
		fmt.Fprintf(a.Stderr, "      `%s --help` shows how it is used\n", f.usage)
	}
}

// unreachable tells whether err means that nobody answered.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, context.DeadlineExceeded)
}

// unreadable tells whether err means that a file is there but not for this user.
func unreadable(err error) bool { return errors.Is(err, fs.ErrPermission) }
