package rpc

import (
	"context"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

// hidden stands for a secret in the audit.
const hidden = "(hidden)"

// recheck is how often the credential of a running stream is looked at again.
const recheck = 3 * time.Second

// short is a procedure as audits name it: InviteService/CreateInvite.
func short(procedure string) string {
	return procedure[strings.LastIndexByte(procedure[:strings.LastIndexByte(procedure, '/')], '.')+1:]
}

// audited tells whether calls of a procedure are recorded: all but reads, and the reads of what
// people did not mean for others.
func audited(procedure string) bool {
	switch procedure {
	case hubv1connect.AgentServiceLogsProcedure:
		return true
	case hubv1connect.UserServiceWhoAmIProcedure, hubv1connect.MachineServiceWatchProcedure, hubv1connect.MachineServiceReportProcedure:
		return false
	}
	method := procedure[strings.LastIndexByte(procedure, '/')+1:]
	for _, read := range []string{"List", "Get", "Watch"} {
		if strings.HasPrefix(method, read) {
			return false
		}
	}
	return !access[procedure].open
}

// describe says in a what the call is, for the audit.
func describe(a *hub.Actor, procedure string, request any) {
	m, ok := request.(proto.Message)
	if !audited(procedure) || ok && dryRun(m) {
		return
	}
	a.What = short(procedure)
	if a.Machine {
		a.Subject = a.Name
		return
	}
	if ok {
		a.Subject, a.Detail = subject(procedure, m), detail(m)
	}
}

// refused records the call of somebody who may not make it.
func (g *guard) refused(ctx context.Context, procedure string, err error) {
	a := hub.ActorFrom(ctx)
	switch {
	case a.Machine || a.Name == "" && !reason.Is(err, reason.Unauthenticated):
		return
	case a.Name == "":
		g.hub.BadKey(ctx, short(procedure))
	case audited(procedure) || reason.Is(err, reason.TokenExpired):
		a.What = short(procedure)
		g.hub.Finished(ctx, err)
	}
}

func dryRun(m proto.Message) bool {
	f := m.ProtoReflect().Descriptor().Fields().ByName("dry_run")
	return f != nil && f.Kind() == protoreflect.BoolKind && m.ProtoReflect().Get(f).Bool()
}

// naming are the fields that say what a request is about, best first.
var naming = []protoreflect.Name{"label", "hostname", "name", "id", "user", "agent", "target"}

// subject is what a request is about: the noun of the service and a name.
func subject(procedure string, m proto.Message) string {
	service, _, _ := strings.Cut(short(procedure), "/")
	noun := strings.ToLower(strings.TrimSuffix(service, "Service"))
	if n := named(m.ProtoReflect(), 1); n != "" {
		return noun + " " + n
	}
	return noun
}

func named(m protoreflect.Message, depth int) string {
	for _, name := range naming {
		if f := m.Descriptor().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			if v := m.Get(f).String(); v != "" {
				return v
			}
		}
	}
	if depth == 0 {
		return ""
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.Kind() == protoreflect.MessageKind && !f.IsList() && !f.IsMap() && m.Has(f) {
			if v := named(m.Get(f).Message(), depth-1); v != "" {
				return v
			}
		}
	}
	return ""
}

// detail is a request as JSON without its secrets.
func detail(m proto.Message) string {
	c := proto.Clone(m)
	redact(c.ProtoReflect())
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c)
	if err != nil {
		return ""
	}
	return string(b)
}

// redact hides fields that are marked as secrets, and passwords in addresses.
func redact(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case secret(f):
			if f.Kind() == protoreflect.StringKind && !f.IsList() && !f.IsMap() {
				m.Set(f, protoreflect.ValueOfString(hidden))
			} else {
				m.Clear(f)
			}
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				if f.MapValue().Kind() == protoreflect.MessageKind {
					redact(v.Message())
				}
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				switch f.Kind() {
				case protoreflect.MessageKind:
					redact(v.List().Get(i).Message())
				case protoreflect.StringKind:
					v.List().Set(i, protoreflect.ValueOfString(withoutPassword(v.List().Get(i).String())))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			redact(v.Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(withoutPassword(v.String())))
		}
		return true
	})
}

func secret(f protoreflect.FieldDescriptor) bool {
	o, ok := f.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact()
}

// withoutPassword hides the user part of an address, and an address that does not parse.
func withoutPassword(s string) string {
	if !strings.Contains(s, "://") || !strings.Contains(s, "@") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return hidden
	}
	return u.Redacted()
}

// stream serves a stream of a person, or of a machine, and ends it soon after its credential does.
func (g *guard) stream(ctx context.Context, conn connect.StreamingHandlerConn, next connect.StreamingHandlerFunc) error {
	a := hub.ActorFrom(ctx)
	if a.Machine {
		return next(ctx, conn)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(recheck)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := g.hub.Still(ctx, a); err != nil {
				cancel(err)
				return
			}
		}
	}()
	d := &described{conn, a, nil}
	err := next(ctx, d)
	nameField(err, d.request)
	ended := context.Cause(ctx)
	cancel(nil)
	<-done
	if reason.Is(ended, reason.Unauthenticated) {
		err = ended
	}
	g.hub.Finished(ctx, err)
	return err
}

// described is a stream whose request the audit hears of.
type described struct {
	connect.StreamingHandlerConn
	actor *hub.Actor
	// request is what was asked for; nil before it came.
	request proto.Message
}

func (d *described) Receive(m any) error {
	if err := d.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	describe(d.actor, d.Spec().Procedure, m)
	if x, ok := m.(proto.Message); ok {
		if p := checkFields(x); p != nil {
			return p
		}
		d.request = x
	}
	return nil
}
