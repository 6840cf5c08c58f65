package rpc

import (
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

// Bounds that hold for every request of people. Fields with narrower ones have them in the hub.
const (
	// maxText is the most of a text, maxRaw of bytes, in bytes; maxItems of a list or map.
	maxText  = 4096
	maxRaw   = 1 << 20
	maxItems = 1000
	// maxShown is how much of a wrong value is said again.
	maxShown = 80
)

// checkFields looks at a whole request for what no field of its type may have; nil = nothing.
func checkFields(m proto.Message) *hub.Problem { return checkMessage(m.ProtoReflect(), "") }

func checkMessage(m protoreflect.Message, path string) (p *hub.Problem) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		switch {
		case f.IsMap():
			p = checkMap(f, v.Map(), at)
		case f.IsList():
			l := v.List()
			if l.Len() > maxItems {
				p = bad(at, "", fmt.Sprintf("send %d at most", maxItems), "has %d items", l.Len())
			}
			for i := 0; i < l.Len() && p == nil; i++ {
				p = checkValue(f, l.Get(i), fmt.Sprintf("%s[%d]", at, i))
			}
		default:
			p = checkValue(f, v, at)
		}
		return p == nil
	})
	return p
}

func checkMap(f protoreflect.FieldDescriptor, m protoreflect.Map, at string) (p *hub.Problem) {
	if m.Len() > maxItems {
		return bad(at, "", fmt.Sprintf("send %d at most", maxItems), "has %d items", m.Len())
	}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if p = checkValue(f.MapKey(), k.Value(), at); p == nil {
			p = checkValue(f.MapValue(), v, at)
		}
		return p == nil
	})
	return p
}

func checkValue(f protoreflect.FieldDescriptor, v protoreflect.Value, at string) *hub.Problem {
	switch f.Kind() {
	case protoreflect.StringKind:
		p := checkText(v.String(), at)
		if p != nil && secret(f) {
			p.Value = ""
		}
		return p
	case protoreflect.BytesKind:
		if n := len(v.Bytes()); n > maxRaw {
			return bad(at, "", fmt.Sprintf("send %d at most", maxRaw), "has %d bytes", n)
		}
	case protoreflect.EnumKind:
		if f.Enum().Values().ByNumber(v.Enum()) == nil {
			var names []string
			for i := range f.Enum().Values().Len() {
				names = append(names, string(f.Enum().Values().Get(i).Name()))
			}
			return bad(at, fmt.Sprint(v.Enum()), "use "+strings.Join(names[min(1, len(names)-1):], ", "), "is not known")
		}
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			if !m.IsValid() || m.GetSeconds() < 0 {
				return bad(at, "", "send a time from 1970 to 9999, as 2030-01-31T12:00:00Z", "is no time that can be meant")
			}
		case *durationpb.Duration:
			if !m.IsValid() || m.GetSeconds() < 0 || m.GetNanos() < 0 {
				return bad(at, "", "send a time of 0 or more, as 3600s", "is no time that can be meant")
			}
		default:
			return checkMessage(v.Message(), at+".")
		}
	}
	return nil
}

// checkText refuses what would be another line of a log, a table or a header. Protobuf has seen to it
// that it is UTF-8.
func checkText(s, at string) *hub.Problem {
	if len(s) > maxText {
		return bad(at, s, fmt.Sprintf("send %d at most", maxText), "has %d bytes", len(s))
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return bad(at, s, "leave it out", "has the control character %U", []rune(s[i:])[0])
	}
	return nil
}

func bad(field, value, remedy, format string, args ...any) *hub.Problem {
	if len(value) > maxShown {
		value = strings.ToValidUTF8(value[:maxShown], "") + "…"
	}
	return &hub.Problem{Code: reason.Invalid, Field: field, Value: value, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// namedBy is the field of a request that has a value, as what was looked for and not found.
func namedBy(m proto.Message, value string) (field string) {
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.StringKind && f.Cardinality() != protoreflect.Repeated && v.String() == value {
			field = string(f.Name())
		}
		return field == ""
	})
	return field
}
