package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/server"
)

func TestExposed(t *testing.T) {
	token, err := identity.NewToken(identity.KindInvite, "https://hub.example.com:8443", [][]byte{make([]byte, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		origin string
		f      exposeFlags
		want   config.ServiceLists
	}{
		{"3000", exposeFlags{label: "demo"}, config.ServiceLists{Services: `[{"hostname":"demo.example.com","origin":"http://127.0.0.1:3000","tls_mode":"terminate"}]`}},
		{"box:3000", exposeFlags{hostname: "a.example.org", access: "public"}, config.ServiceLists{Services: `[{"access":"public","hostname":"a.example.org","origin":"http://box:3000","tls_mode":"terminate"}]`}},
		{"https://box", exposeFlags{label: "d", auth: "none"}, config.ServiceLists{Services: `[{"access":"public","hostname":"d.example.com","origin":"https://box:443","tls_mode":"terminate"}]`}},
		{"tls://box:8443", exposeFlags{label: "d", auth: "sso"}, config.ServiceLists{Services: `[{"access":"protected","hostname":"d.example.com","origin":"box:8443","tls_mode":"passthrough"}]`}},
		{"tcp://127.0.0.1:22", exposeFlags{listenPort: 2222}, config.ServiceLists{TCP: `[{"listen_port":2222,"name":"tcp-2222","origin":"127.0.0.1:22"}]`}},
		{"udp://[::1]:3478", exposeFlags{}, config.ServiceLists{UDP: `[{"listen_port":3478,"name":"udp-3478","origin":"[::1]:3478"}]`}},
	} {
		got, err := exposed(c.origin, c.f, token)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v %v, want %+v", c.origin, got, err, c.want)
			continue
		}
		if _, err := config.ParseServices(got, nil); err != nil {
			t.Errorf("%s: the agent does not take it: %v", c.origin, err)
		}
	}
	for _, c := range []struct {
		origin string
		f      exposeFlags
		want   string
	}{
		{"3000", exposeFlags{}, "--label demo"},
		{"3000", exposeFlags{label: "a", hostname: "b"}, "--label and --hostname"},
		{"3000", exposeFlags{label: "a.b"}, "--hostname"},
		{"3000", exposeFlags{label: "a", access: "open"}, `"open"`},
		{"3000", exposeFlags{label: "a", access: "protected", auth: "none"}, "different things"},
		{"3000", exposeFlags{label: "a", listenPort: 1}, "--listen-port"},
		{"0", exposeFlags{label: "a"}, "not an origin"},
		{"tcp://x", exposeFlags{}, "names no port"},
		{"tcp://x:1", exposeFlags{label: "a"}, "--listen-port"},
		{"ftp://x", exposeFlags{label: "a"}, `"ftp"`},
		{"http://u@x/", exposeFlags{label: "a"}, "not an origin"},
		{"http://x/path", exposeFlags{label: "a"}, "not an origin"},
	} {
		if _, err := exposed(c.origin, c.f, token); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %v, want %q", c.origin, c.f, err, c.want)
		}
	}
}

func TestMachineChecks(t *testing.T) {
	kernel := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	t.Run("T11 small socket buffers are named with the command that helps", func(t *testing.T) {
		got := socketBuffers(kernel(map[string]string{"net/core/rmem_max": "212992", "net/core/wmem_max": "8388608"}))
		if got[0].Status != server.StatusWarn || !strings.Contains(got[0].Remedy, "sysctl -w net.core.rmem_max=7340032") || got[1].Status != server.StatusOK {
			t.Errorf("%+v", got)
		}
	})
	t.Run("O07 small socket buffers are named", func(t *testing.T) {
		for _, c := range socketBuffers(kernel(map[string]string{"net/core/rmem_max": "4096", "net/core/wmem_max": "4096"})) {
			if c.Status != server.StatusWarn || !strings.Contains(c.Detail, "4096 bytes") {
				t.Errorf("%+v", c)
			}
		}
	})
	t.Run("O07 a wrong clock is named", func(t *testing.T) {
		for off, want := range map[time.Duration]string{0: server.StatusOK, -2 * time.Second: server.StatusOK, time.Minute: server.StatusWarn,
			-time.Hour: server.StatusFail, 48 * time.Hour: server.StatusFail} {
			if c := judgeClock(off); c.Status != want || want != server.StatusOK && (!strings.Contains(c.Detail, off.Abs().String()) || c.Remedy == "") {
				t.Errorf("%s: %+v", off, c)
			}
		}
	})
	for want, m := range map[string]map[string]string{
		"bbr is there":        {"net/ipv4/tcp_congestion_control": "cubic", "net/ipv4/tcp_allowed_congestion_control": "reno cubic bbr"},
		"cubic; bbr is":       {"net/ipv4/tcp_congestion_control": "cubic", "net/ipv4/tcp_allowed_congestion_control": "reno cubic"},
		"cannot be read here": {},
	} {
		if got := congestionControl(kernel(m)); !strings.Contains(got.Detail, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

func TestAddressOf(t *testing.T) {
	for _, c := range []struct{ kind, name, hub, want string }{
		{"http", "a.example.com", "https://hub.example.com", "https://a.example.com"},
		{"tls", "a.example.com", "https://hub.example.com:8443", "https://a.example.com:8443"},
		{"tcp", "tcp-2222", "https://hub.example.com:8443", "tcp://hub.example.com:2222"},
	} {
		if got := addressOf(agent.ServiceStatus{Kind: c.kind, Name: c.name}, c.hub); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("/a\x1b[2Jb\n"); got != "/a?[2Jb?" {
		t.Errorf("%q", got)
	}
	if got := printable(strings.Repeat("x", 1000)); len(got) > 210 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestParsePort(t *testing.T) {
	for in, want := range map[string][2]uint32{"tcp:2222": {2222, 0}, "udp:4000-4010": {4000, 4010}, "tcp": {0, 0}} {
		_, first, last, err := parsePort(in)
		if err != nil || first != want[0] || last != want[1] {
			t.Errorf("%s: %d %d %v", in, first, last, err)
		}
	}
	for _, in := range []string{"", "2222", "sctp:1", "tcp:", "tcp:0", "tcp:1,2", "udp:9-8"} {
		if _, _, _, err := parsePort(in); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}
