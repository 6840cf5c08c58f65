package hub

import (
	"fmt"

	"github.com/adit-dev/adit/internal/reason"
)

// Problem is why the hub did not do what it was asked: the field, its value, the remedy.
type Problem struct {
	// Code is invalid, not_found, name_conflict, port_conflict, … of internal/reason.
	Code reason.Code
	// Field of the request, as "hostnames[1]"; empty when it is none. Value as it was sent.
	Field, Value string
	// Text says what is wrong, Remedy what to do.
	Text, Remedy string
	// Holder is the tenant that holds a name or port, Held what it holds.
	Holder, Held string
}

func (p *Problem) Error() string {
	s := p.Text
	// What there is not is named in the text.
	if p.Field != "" && p.Code != reason.NotFound {
		s = p.Field + ": " + s
		if p.Value != "" {
			s = fmt.Sprintf("%s %q: %s", p.Field, p.Value, p.Text)
		}
	}
	if p.Remedy != "" {
		s += "; " + p.Remedy
	}
	return s
}

// Unwrap lets reason.Is and reason.Of see the code.
func (p *Problem) Unwrap() error {
	return &reason.Error{Code: p.Code, Hop: reason.HopHub, Detail: p.Error()}
}

func invalid(field, value, remedy, text string, args ...any) *Problem {
	return &Problem{Code: reason.Invalid, Field: field, Value: value, Text: fmt.Sprintf(text, args...), Remedy: remedy}
}

func notFound(what, value, remedy string) *Problem {
	return &Problem{Code: reason.NotFound, Text: fmt.Sprintf("there is no %s %q", what, value), Value: value, Remedy: remedy}
}

// notFoundIn is notFound for a field that is no text, which nothing else can tell.
func notFoundIn(field, what, value, remedy string) *Problem {
	p := notFound(what, value, remedy)
	p.Field = field
	return p
}
