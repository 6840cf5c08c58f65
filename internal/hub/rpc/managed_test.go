package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	"github.com/adit-dev/adit/internal/reason"
)

// problem is what an answer says is wrong.
type problem struct{ Code, Field, Value, Remedy, Holder, Held string }

// post calls a procedure with JSON, as curl does, and returns the problem in the answer.
func (s *server) post(t *testing.T, procedure, body string) (status int, answer string, p problem) {
	t.Helper()
	c, base := s.oneClient()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+procedure, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.adminKey())
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var e struct {
		Details []struct{ Debug json.RawMessage }
	}
	if json.Unmarshal(b, &e) == nil && len(e.Details) > 0 {
		_ = json.Unmarshal(e.Details[0].Debug, &p)
	}
	return resp.StatusCode, string(b), p
}

// TestManagedBadInput sends wrong fields of every message of this area over HTTP; each answer names
// field and remedy.
func TestManagedBadInput(t *testing.T) {
	s := start(t)
	if code, body, _ := s.post(t, hubv1connect.AgentServiceCreateAgentProcedure, `{"name": "home"}`); code != 200 {
		t.Fatal(code, body)
	}
	if code, body, _ := s.post(t, hubv1connect.TunnelServiceCreateTunnelProcedure,
		`{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "app", "origins": [{"url": "http://10.0.0.5:3000"}]}}`); code != 200 {
		t.Fatal(code, body)
	}
	tunnel := func(rest string) string {
		return `{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "x", "origins": [{"url": "http://a:1"}], ` + rest + `}}`
	}
	origin := func(o string) string {
		return `{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "x", "origins": [` + o + `]}}`
	}
	update := func(mask, tunnel string) string {
		return fmt.Sprintf(`{"label": "app", "updateMask": %q, "tunnel": {%s}}`, mask, tunnel)
	}
	const (
		create = hubv1connect.TunnelServiceCreateTunnelProcedure
		change = hubv1connect.TunnelServiceUpdateTunnelProcedure
	)
	for _, c := range []struct{ procedure, body, field, code string }{
		{create, `{}`, "tunnel", "invalid"},
		{create, `{"tunnel": {"kind": "KIND_HTTP", "label": "x", "origins": [{"url": "http://a:1"}]}}`, "agent", "invalid"},
		{create, `{"agent": "no", "tunnel": {"kind": "KIND_HTTP", "label": "x", "origins": [{"url": "http://a:1"}]}}`, "agent", "not_found"},
		{create, `{"agent": "home", "tunnel": {"label": "x"}}`, "kind", "invalid"},
		{create, `{"agent": "home", "tunnel": {"kind": "KIND_HTTP", "label": "app", "origins": [{"url": "http://a:1"}]}}`, "label", "name_conflict"},
		{create, tunnel(`"hostname": "other.test"`), "hostname", "invalid"},
		{create, tunnel(`"port": 80`), "port", "invalid"},
		{create, tunnel(`"address": "10.0.0.1"`), "address", "invalid"},
		{create, tunnel(`"responseTimeoutSeconds": 1201`), "response_timeout_seconds", "invalid"},
		{create, tunnel(`"upstreamBasicAuth": {"user": "a"}`), "upstream_basic_auth.password", "invalid"},
		{create, tunnel(`"healthCheck": {"path": "x"}`), "health_check.path", "invalid"},
		{create, tunnel(`"access": {"require": "some"}`), "access.require", "invalid"},
		{create, tunnel(`"access": {"policies": ["none"]}`), "access.policies[0]", "not_found"},
		{create, tunnel(`"carrierPolicy": "CARRIER_POLICY_RAW"`), "carrier_policy", "invalid"},
		{create, tunnel(`"httpPorts": [0]`), "http_ports", "invalid"},
		{create, tunnel(`"rules": [{"match": {"pathPrefix": "x"}, "origins": [{"weight": 1}]}]`), "rules[0].match.path", "invalid"},
		{create, origin(`{"url": "x"}`), "origins[0]", "invalid"},
		{create, origin(`{"url": "http://a:1", "hostHeader": "a b"}`), "origins[0].host_header", "invalid"},
		{create, origin(`{"url": "http://a:1", "serverName": "a"}`), "origins[0].server_name", "invalid"},
		{create, origin(`{"url": "https://a:1", "caPem": "eA=="}`), "origins[0].ca_pem", "invalid"},
		{create, origin(`{"url": "http://a:1", "proxyProtocol": "v9"}`), "origins[0].proxy_protocol", "invalid"},
		{change, update("", `"name": "x"`), "update_mask", "invalid"},
		{change, update("kind", `"kind": "KIND_TLS"`), "update_mask", "invalid"},
		{change, update("origins", ``), "origins", "invalid"},
		{change, `{"label": "app", "version": "9", "updateMask": "name", "tunnel": {"name": "x"}}`, "version", "version_conflict"},
		{hubv1connect.AgentServiceCreateAgentProcedure, `{"name": "home"}`, "name", "name_conflict"},
		{hubv1connect.AgentServiceCreateAgentProcedure, `{"name": "x", "grant": {"tcpPorts": [{"first": 1}]}}`, "grant.tcp_ports[0]", "invalid"},
		{hubv1connect.AgentServiceCreateAgentProcedure, `{"name": "x", "from": ["x"]}`, "from[0]", "invalid"},
		{hubv1connect.AgentServiceDeleteAgentProcedure, `{"id": "home"}`, "id", "in_use"},
		{hubv1connect.AgentServiceRotateAgentProcedure, `{"id": "home", "overlap": "9999999s"}`, "overlap", "invalid"},
		{hubv1connect.AgentServiceRotateAgentProcedure, `{"id": "no"}`, "id", "not_found"},
		{hubv1connect.AgentServiceSetAgentEnabledProcedure, `{"id": "no"}`, "id", "not_found"},
		{hubv1connect.AgentServiceDrainAgentProcedure, `{"id": "home"}`, "id", "no_agent"},
		{hubv1connect.AccessServiceSetAccessProcedure, `{"label": "app"}`, "access", "invalid"},
		{hubv1connect.AccessServiceAddAccessRuleProcedure, `{"label": "app"}`, "rule", "invalid"},
		{hubv1connect.AccessServiceAddAccessRuleProcedure, `{"label": "app", "rule": {"email": "x"}}`, "access.rules[0].email", "invalid"},
		{hubv1connect.AccessServiceRemoveAccessRuleProcedure, `{"label": "app", "ruleId": "x"}`, "rule_id", "not_found"},
		{hubv1connect.PolicyServiceSetPolicyProcedure, `{"policy": {"name": "a b"}}`, "policy.name", "invalid"},
		{hubv1connect.PolicyServiceSetPolicyProcedure, `{"policy": {"name": "x"}}`, "policy.access.rules", "invalid"},
		{hubv1connect.PolicyServiceGetPolicyProcedure, `{"name": "x"}`, "name", "not_found"},
		{hubv1connect.InviteServiceUpdateInviteProcedure, `{"id": "x"}`, "update_mask", "invalid"},
		{hubv1connect.InviteServiceRotateInviteProcedure, `{"id": "x"}`, "id", "not_found"},
		{hubv1connect.TenantServiceReleaseNameProcedure, `{"name": "x"}`, "name", "not_found"},
		{hubv1connect.EdgeServiceDrainEdgeProcedure, `{"id": "x"}`, "id", "not_found"},
		{hubv1connect.EdgeServiceRemoveEdgeProcedure, `{"id": "x"}`, "id", "not_found"},
	} {
		code, body, p := s.post(t, c.procedure, c.body)
		if code == 200 || p.Code != c.code || p.Field != c.field || p.Remedy == "" {
			t.Errorf("%s %s: %d %+v %s", c.procedure, c.body, code, p, body)
		}
	}
}

// TestParallelHostname has 50 people make one hostname over HTTP: exactly one wins, and the others hear
// who.
func TestParallelHostname(t *testing.T) {
	s := start(t)
	c, base := s.local()
	opts := connect.WithInterceptors(person{s.adminKey()})
	if _, err := hubv1connect.NewAgentServiceClient(c, base, opts).CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: "home"}); err != nil {
		t.Fatal(err)
	}
	tunnels := hubv1connect.NewTunnelServiceClient(c, base, opts)
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r, err := tunnels.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Agent: "home", Tunnel: &hubv1.Tunnel{
				Kind: web("x").GetKind(), Hostname: "one.test", Origins: []*hubv1.Origin{{Url: "http://a:1"}}}})
			if err == nil {
				won.Add(1)
				if r.GetTunnel().GetTunnel().GetVersion() != 1 {
					t.Error(r)
				}
				return
			}
			if p := wantCode(t, err, connect.CodeAlreadyExists, reason.NameConflict); p.GetHolder() != "default" || p.GetHeld() == "" {
				t.Error(p)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d won", won.Load())
	}
}
