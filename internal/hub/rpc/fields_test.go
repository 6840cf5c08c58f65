package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// requests is a request for each procedure that takes one, of which one field at a time is spoilt.
// Those that are not here are tried with an empty one.
var requests = map[string]string{
	"AccessService/SetAccess":        `{"label": "app", "access": {"mode": "MODE_PROTECTED", "require": "any", "policies": ["team"], "rules": [{"email": "a@example.com"}]}}`,
	"AccessService/AddAccessRule":    `{"label": "app", "rule": {"email": "b@example.com"}}`,
	"AccessService/RemoveAccessRule": `{"label": "app", "ruleId": "x"}`,
	"PolicyService/SetPolicy":        `{"policy": {"name": "other", "access": {"require": "any", "rules": [{"email": "a@example.com"}]}}}`,
	"UserService/InviteUser":         `{"name": "carl", "role": "viewer"}`,
	"UserService/UpdateUser":         `{"id": "bob", "role": "viewer"}`,
	"KeyService/CreateKey":           `{"name": "k", "user": "bob"}`,
	"ProviderService/SetProvider":    `{"provider": {"name": "work", "issuer": "https://id.example.com", "clientId": "adit", "clientSecret": "s"}}`,
	"DeviceService/StartDevice":      `{"client": "laptop"}`,
	"InviteService/CreateInvite":     `{"name": "new", "hostnames": ["new.example.com"]}`,
	"InviteService/UpdateInvite":     `{"id": "inv", "invite": {}}`,
	"InviteService/RotateInvite":     `{"id": "inv"}`,
	"TunnelService/CreateTunnel":     `{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "new", "origins": [{"url": "http://10.0.0.5:3000"}]}}`,
	"TunnelService/UpdateTunnel":     `{"label": "app", "updateMask": "name", "tunnel": {"name": "app"}}`,
	"AgentService/CreateAgent":       `{"name": "other"}`,
	"AgentService/RotateAgent":       `{"id": "home"}`,
	"AgentService/Preflight":         `{"agent": "home", "ask": {"origin": {"url": "http://10.0.0.5:3000"}}}`,
	"AgentService/ListServices":      `{"id": "home"}`,
	"AgentService/Logs":              `{"agent": "home"}`,
	"AgentService/OpenForward":       `{"agent": "home", "target": "10.0.0.5:22"}`,
	"PortService/ReservePort":        `{"kind": "KIND_TCP", "port": 2000}`,
	"PortService/ReleasePort":        `{"kind": "KIND_TCP", "port": 2000}`,
	"EdgeService/InviteEdge":         `{"name": "far"}`,
	"NoticeService/SetNoticeTarget":  `{"target": {"name": "hook", "webhookUrl": "https://hooks.example.com/x"}}`,
	"TrafficService/GetTraffic":      `{"label": "app"}`,
}

// spoilt are values that no field of a type may have, beyond those that its own rows try.
func spoilt(f protoreflect.FieldDescriptor) []string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return []string{`"a\u0000b\r\n"`, `"` + strings.Repeat("x", 70_000) + `"`}
	case protoreflect.EnumKind:
		return []string{"99"}
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return []string{"4294967295"}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return []string{"-1"}
	case protoreflect.BytesKind:
		return []string{`"` + strings.Repeat("eHh4", 40_000) + `"`}
	case protoreflect.MessageKind:
		switch f.Message().FullName() {
		case "google.protobuf.Duration":
			return []string{`"-5s"`, `"300000000000s"`}
		case "google.protobuf.Timestamp":
			return []string{`"0001-01-01T00:00:00Z"`}
		case "google.protobuf.FieldMask":
			return []string{`"nothing.of.the.kind"`}
		}
	}
	return nil
}

// TestEveryField spoils every field of every request that people send, over HTTP: the answer names the
// field and says what to do, and nothing has changed.
func TestEveryField(t *testing.T) {
	s := start(t)
	seed(t, s)
	before := revision(t, s)
	known := map[string]bool{}
	for _, svcs := range services() {
		for i := range svcs.Len() {
			for j := range svcs.Get(i).Methods().Len() {
				m := svcs.Get(i).Methods().Get(j)
				short := fmt.Sprintf("%s/%s", svcs.Get(i).Name(), m.Name())
				w := access["/"+string(svcs.Get(i).FullName())+"/"+string(m.Name())]
				if len(w.machines) > 0 {
					continue
				}
				base := requests[short]
				if base == "" {
					base = "{}"
				}
				known[short] = true
				walk(m.Input(), nil, 0, func(path []protoreflect.FieldDescriptor) {
					spoil(t, s, "/"+string(svcs.Get(i).FullName())+"/"+string(m.Name()), short, base, path)
				})
			}
		}
	}
	for p := range requests {
		if !known[p] {
			t.Errorf("%s does not exist", p)
		}
	}
	if now := revision(t, s); now != before {
		t.Errorf("the store changed from %s to %s", before, now)
	}
}

// walk calls f with the path of each field that is no message, and of each well-known one.
func walk(m protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor, depth int, f func([]protoreflect.FieldDescriptor)) {
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		at := append(slices.Clone(path), fd)
		if fd.Kind() == protoreflect.MessageKind && len(spoilt(fd)) == 0 {
			if depth < 4 && !fd.IsMap() {
				walk(fd.Message(), at, depth+1, f)
			}
			continue
		}
		f(at)
	}
}

var index = regexp.MustCompile(`\[\d+\]`)

func spoil(t *testing.T, s *server, procedure, short, base string, path []protoreflect.FieldDescriptor) {
	t.Helper()
	var names []string
	for _, f := range path {
		names = append(names, string(f.Name()))
	}
	name := short + " " + strings.Join(names, ".")
	if unspoilt[name] != "" || unspoilt[names[len(names)-1]] != "" {
		return
	}
	last := path[len(path)-1]
	for _, value := range spoilt(last) {
		var body map[string]any
		if err := json.Unmarshal([]byte(base), &body); err != nil {
			t.Fatal(err)
		}
		set(body, path, json.RawMessage(value))
		if mask := path[0].ContainingMessage().Fields().ByName("update_mask"); mask != nil && len(path) > 1 {
			body["updateMask"] = path[1].JSONName()
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		send := s.post
		if streams(procedure) {
			send = s.postStream
		}
		code, answer, p := send(t, procedure, string(text))
		field := index.ReplaceAllString(p.Field, "")
		// The field itself, or the message that it makes wrong.
		full := strings.Join(names, ".")
		named := field != "" && (strings.HasSuffix(full, field) || strings.Contains("."+full+".", "."+field+"."))
		if at := coarser[name]; at != "" {
			named = field == at
		}
		wrong := code == http.StatusBadRequest && p.Code == "invalid" || code == http.StatusNotFound && p.Code == "not_found" ||
			code == http.StatusConflict && p.Code == "version_conflict" && names[len(names)-1] == "version"
		if !wrong || !named || p.Remedy == "" {
			t.Errorf("%s = %.40s: %d %s field %q remedy %q: %.300s", name, value, code, p.Code, p.Field, p.Remedy, answer)
		}
		if secret(last) && strings.Contains(answer, "xxxx") {
			t.Errorf("%s: the answer has the secret: %.300s", name, answer)
		}
		if last.Kind() == protoreflect.StringKind && !secret(last) && p.Value == "" {
			t.Errorf("%s = %.40s: the value is not named: %.300s", name, value, answer)
		}
	}
}

// postStream is post for a procedure that answers with a stream: the problem is in its end.
func (s *server) postStream(t *testing.T, procedure, body string) (status int, answer string, p problem) {
	t.Helper()
	c, base := s.oneClient()
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+procedure, bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Authorization", "Bearer "+s.adminKey())
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, head); err != nil || head[0]&2 == 0 {
		return http.StatusOK, "the stream goes on", p
	}
	b, _ := io.ReadAll(resp.Body)
	var end struct {
		Error struct {
			Code    string
			Details []struct{ Debug problem }
		}
	}
	if err := json.Unmarshal(b, &end); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if len(end.Error.Details) > 0 {
		p = end.Error.Details[0].Debug
	}
	return map[string]int{"invalid_argument": http.StatusBadRequest, "not_found": http.StatusNotFound}[end.Error.Code], string(b), p
}

// coarser are fields whose error names what they belong to.
var coarser = map[string]string{}

// set puts a value at a path, into the first element of lists.
func set(body map[string]any, path []protoreflect.FieldDescriptor, value json.RawMessage) {
	f := path[0]
	key := f.JSONName()
	if len(path) == 1 {
		switch {
		case f.IsMap():
		case f.IsList():
			body[key] = []any{value}
		default:
			body[key] = value
		}
		return
	}
	inner := map[string]any{}
	// A rule of access is one thing only.
	rule := f.Message() != nil && f.Message().Name() == "AccessRule" && path[1].Name() != "note"
	if f.IsList() {
		if l, ok := body[key].([]any); ok && len(l) > 0 {
			inner, _ = l[0].(map[string]any)
		}
		inner = maps.Clone(inner)
		body[key] = []any{inner}
	} else {
		if m, ok := body[key].(map[string]any); ok {
			inner = m
		}
		body[key] = inner
	}
	if rule && (path[1].ContainingOneof() != nil || path[1].Kind() == protoreflect.StringKind) {
		clear(inner)
	}
	set(inner, path[1:], value)
}

// seed makes what well-formed requests speak of.
func seed(t *testing.T, s *server) {
	t.Helper()
	s.user("bob", admin)
	for _, r := range [][2]string{
		{"AgentService/CreateAgent", `{"name": "home"}`},
		{"TunnelService/CreateTunnel", `{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "app", "origins": [{"url": "http://10.0.0.5:3000"}]}}`},
		{"PolicyService/SetPolicy", `{"policy": {"name": "team", "access": {"rules": [{"email": "a@example.com"}]}}}`},
		{"InviteService/CreateInvite", `{"name": "inv", "hostnames": ["inv.example.com"]}`},
	} {
		if code, body, _ := s.post(t, "/adit.hub.v1."+r[0], r[1]); code != 200 {
			t.Fatal(r, code, body)
		}
	}
}

// unspoilt are fields that have no bad value of the kind tried here, and why.
var unspoilt = map[string]string{
	"TunnelService/CreateTunnel tunnel.version": "a new tunnel has none yet", "TunnelService/UpdateTunnel tunnel.version": "the request has its own",
	"TunnelService/CreateTunnel tunnel.port_last": "told of with port", "TunnelService/UpdateTunnel tunnel.port_last": "told of with port", "PortService/ReservePort last": "told of with port",
	"AgentService/Preflight ask.origin.idle_timeout_seconds": "the agent judges the origin", "AgentService/Preflight ask.origin.ca_pem": "the agent judges the origin",
	"EventService/WatchEvents after_id": "events to come may have any number",
	"page_size":                         "more than a page can hold means a page (AIP-158)",
	// What the hub tells is not read, so that what was read can be sent again with a change.
	"created_at": "told by the hub", "updated_at": "told by the hub", "revoked_at": "told by the hub", "last_delivery_at": "told by the hub",
	"last_error": "told by the hub", "used_by": "told by the hub", "summary": "told by the hub", "replicas": "told by the hub",
}

// revision is everything that people can change, as they see it: lists, and how many changes the audit has.
func revision(t *testing.T, s *server) string {
	t.Helper()
	var all strings.Builder
	for _, p := range []string{"TunnelService/ListTunnels", "AgentService/ListAgents", "InviteService/ListInvites", "PolicyService/ListPolicies", "UserService/ListUsers", "KeyService/ListKeys",
		"PortService/ListPorts", "EdgeService/ListEdgeInvites", "NoticeService/ListNoticeTargets", "ProviderService/ListProviders", "TenantService/ListTenants"} {
		_, body, _ := s.post(t, "/adit.hub.v1."+p, "{}")
		all.WriteString(body)
	}
	return strings.ReplaceAll(all.String(), " ", "")
}

// TestSecretFieldsAreMarked: what is marked in the descriptors stays out of the audit and of errors.
func TestSecretFieldsAreMarked(t *testing.T) {
	looks := regexp.MustCompile(`(^|_)(password|secret|device_code)$`)
	for _, svcs := range services() {
		for i := range svcs.Len() {
			for j := range svcs.Get(i).Methods().Len() {
				m := svcs.Get(i).Methods().Get(j)
				walk(m.Input(), nil, 0, func(path []protoreflect.FieldDescriptor) {
					if f := path[len(path)-1]; looks.MatchString(string(f.Name())) && !secret(f) {
						t.Errorf("%s of %s is not marked with debug_redact", f.FullName(), m.FullName())
					}
				})
			}
		}
	}
}
