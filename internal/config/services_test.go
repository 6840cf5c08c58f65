package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

const (
	auto      = hubv1.CarrierPolicy_CARRIER_POLICY_AUTO
	public    = hubv1.Access_MODE_PUBLIC
	protected = hubv1.Access_MODE_PROTECTED
	kindHTTP  = wirev1.Kind_KIND_HTTP
	kindTLS   = wirev1.Kind_KIND_TLS
	kindTCP   = wirev1.Kind_KIND_TCP
	kindUDP   = wirev1.Kind_KIND_UDP
)

func TestParseServices(t *testing.T) {
	for _, c := range []struct {
		name string
		set  ServiceLists
		file string
		want Services
	}{
		{"L07 nothing declared, nothing served", ServiceLists{}, "", nil},
		{"empty lists", ServiceLists{Services: "[]", TCP: " [] ", UDP: "null"}, "", nil},
		{
			"documented example",
			ServiceLists{
				Services: `[{"hostname": "*.example.dev", "origin": "envoy.network.svc:443", "tls_mode": "passthrough", "proxy_protocol": "none", "origin_server_name": ""}]`,
				TCP:      `[{"name": "ssh",  "origin": "forgejo-ssh:2222", "listen_port": 2222, "proxy_protocol": "none"}]`,
				UDP:      `[{"name": "turn", "origin": "coturn:3478", "listen_port": 3478, "idle_timeout_secs": 120}]`,
			}, "",
			Services{
				{Key: "services[0]", Name: "*.example.dev", Kind: kindTLS, Hostname: "*.example.dev", Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "tcp://envoy.network.svc:443", ProxyProtocol: "none"}},
				{Key: "tcp_services[0]", Name: "ssh", Kind: kindTCP, Port: 2222, Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "tcp://forgejo-ssh:2222", ProxyProtocol: "none"}},
				{Key: "udp_services[0]", Name: "turn", Kind: kindUDP, Port: 3478, Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "udp://coturn:3478", ProxyProtocol: "none", IdleTimeoutSeconds: 120}},
			},
		},
		{
			"tls_mode as an object, terminate, protected by default",
			ServiceLists{Services: `[{"hostname": "A.Example.com.", "origin": "http://10.0.0.5", "tls_mode": {"mode": "terminate"}, "host_header": "origin"},
				{"name": "web", "hostname": "b.example.com", "origin": "web:3000", "tls_mode": "terminate", "access": "none", "carrier_policy": "latency", "proxy_protocol": "v2"}]`}, "",
			Services{
				{Key: "services[0]", Name: "a.example.com", Kind: kindHTTP, Hostname: "a.example.com", Access: protected, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "http://10.0.0.5:80", ProxyProtocol: "none", HostHeader: "origin"}},
				{Key: "services[1]", Name: "web", Kind: kindHTTP, Hostname: "b.example.com", Access: public, CarrierPolicy: hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY, Origin: &hubv1.Origin{Url: "http://web:3000", ProxyProtocol: "v2"}},
			},
		},
		{
			"clear HTTP ports",
			ServiceLists{Services: `[{"hostname": "a.example.com", "origin": "http://o:1", "tls_mode": "terminate", "http_ports": [8080, 80, 8080]}]`}, "",
			Services{
				{Key: "services[0]", Name: "a.example.com", Kind: kindHTTP, Hostname: "a.example.com", Access: protected, CarrierPolicy: auto, HttpPorts: []uint32{80, 8080}, Origin: &hubv1.Origin{Url: "http://o:1", ProxyProtocol: "none"}},
			},
		},
		{
			"server name makes the agent speak TLS",
			ServiceLists{Services: `[{"hostname": "a.example.com", "origin": "o:443", "origin_server_name": "o.Internal"},
				{"hostname": "b.example.com", "origin": "o:443", "origin_server_name": "o.internal", "tls_mode": "terminate"}]`}, "",
			Services{
				{Key: "services[0]", Name: "a.example.com", Kind: kindTLS, Hostname: "a.example.com", Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "tls://o:443", ServerName: "o.internal", ProxyProtocol: "none"}},
				{Key: "services[1]", Name: "b.example.com", Kind: kindHTTP, Hostname: "b.example.com", Access: protected, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "https://o:443", ServerName: "o.internal", ProxyProtocol: "none"}},
			},
		},
		{
			"YAML file, port range, IPv6 origin, other keys ignored",
			ServiceLists{}, "log-level: debug\nudp-services:\n  - name: media\n    origin: \"[::1]\"\n    listen_port_range: [40000, 40099]\n",
			Services{
				{Key: "udp_services[0]", Name: "media", Kind: kindUDP, Port: 40000, PortLast: 40099, Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "udp://[::1]:0", ProxyProtocol: "none", IdleTimeoutSeconds: 120}},
			},
		},
		{
			"a range of one port is that port",
			ServiceLists{UDP: `[{"name": "one", "origin": "h", "listen_port_range": [5000, 5000], "proxy_protocol": "v2"}]`}, "",
			Services{
				{Key: "udp_services[0]", Name: "one", Kind: kindUDP, Port: 5000, Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "udp://h:5000", ProxyProtocol: "v2", IdleTimeoutSeconds: 120}},
			},
		},
		{
			"a list that is set wins over the file's, the others stay",
			ServiceLists{TCP: "[]"}, "tcp_services: [{name: a, origin: 'h:1', listen_port: 1024}]\nudp_services: [{name: a, origin: 'h:1', listen_port: 1024}]\n",
			Services{
				{Key: "udp_services[0]", Name: "a", Kind: kindUDP, Port: 1024, Access: public, CarrierPolicy: auto, Origin: &hubv1.Origin{Url: "udp://h:1", ProxyProtocol: "none", IdleTimeoutSeconds: 120}},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseServices(c.set, []byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseServicesErrors(t *testing.T) {
	services := func(s string) ServiceLists { return ServiceLists{Services: s} }
	tcp := func(s string) ServiceLists { return ServiceLists{TCP: s} }
	udp := func(s string) ServiceLists { return ServiceLists{UDP: s} }
	for _, c := range []struct {
		name string
		set  ServiceLists
		file string
		want []string // parts of the message
	}{
		{"not JSON", services(`[{"hostname": `), "", []string{"services: not a JSON list", `[{"hostname"`}},
		{"text after the list", services(`[] []`), "", []string{"services", "after the list"}},
		{"object", tcp(`{"name": "x"}`), "", []string{"tcp_services is an object, want a list"}},
		{"entry is text", tcp(`["ssh"]`), "", []string{`tcp_services[0] is the text "ssh", want an object`}},
		{"unknown field", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 2222, "port": 1}]`), "", []string{`tcp_services[0] (ssh): field "port": is not known; the fields are name,`}},
		{"field twice", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 2222, "listen_port": 1}]`), "", []string{`"listen_port": is there twice`}},
		{"port as text", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": "2222"}]`), "", []string{`(ssh): field "listen_port": is the text "2222", want a number from 1 to 65535 without quotes`}},
		{"port as fraction", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 22.5}]`), "", []string{"the number 22.5, want a number"}},
		{"port 0", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 0}]`), "", []string{"value 0 is out of range"}},
		{"port too large", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 70000}]`), "", []string{"value 70000 is out of range"}},
		{"port negative", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": -1}]`), "", []string{"value -1 is out of range"}},
		{"no port", tcp(`[{"name": "ssh", "origin": "h:22"}]`), "", []string{`"listen_port": is missing`}},
		{"name is a number", tcp(`[{"name": 5, "origin": "h:22", "listen_port": 22}]`), "", []string{`"name": is the number 5, want text in quotes`}},
		{"name empty", tcp(`[{"name": "", "origin": "h:22", "listen_port": 22}]`), "", []string{`"name": is empty`}},
		{"name long", tcp(`[{"name": "` + strings.Repeat("a", 65) + `", "origin": "h:22", "listen_port": 22}]`), "", []string{"65 bytes"}},
		{"name with control characters", tcp(`[{"name": "a\u0007", "origin": "h:22", "listen_port": 22}]`), "", []string{"control characters"}},
		{"origin missing", services(`[{"hostname": "a.example.com"}]`), "", []string{`services[0] (a.example.com): field "origin": is missing`}},
		{"origin without port", tcp(`[{"name": "ssh", "origin": "h", "listen_port": 22}]`), "", []string{`"origin": value "h": has no port`}},
		{"origin with path", services(`[{"hostname": "a.example.com", "origin": "http://h/x", "tls_mode": "terminate"}]`), "", []string{"has a path"}},
		{"origin with user", services(`[{"hostname": "a.example.com", "origin": "http://u:p@h", "tls_mode": "terminate"}]`), "", []string{"has a user name"}},
		{"origin IPv6 bare", tcp(`[{"name": "ssh", "origin": "::1:22", "listen_port": 22}]`), "", []string{"write it as [::1]:port"}},
		{"origin scheme with passthrough", services(`[{"hostname": "a.example.com", "origin": "https://h"}]`), "", []string{"set tls_mode to terminate"}},
		{"origin scheme unknown", tcp(`[{"name": "ssh", "origin": "ssh://h:22", "listen_port": 22}]`), "", []string{`scheme "ssh" is not possible here`}},
		{"server name with a clear origin", services(`[{"hostname": "a.example.com", "origin": "http://h", "tls_mode": "terminate", "origin_server_name": "x.y"}]`), "", []string{"write origin as https://h:80"}},
		{"host name wrong", services(`[{"hostname": "a.*.com", "origin": "h:443"}]`), "", []string{`"hostname": host name "a.*.com"`}},
		{"tls_mode wrong", services(`[{"hostname": "a.example.com", "origin": "h:443", "tls_mode": "end"}]`), "", []string{`"tls_mode": value "end" is not known; use passthrough, terminate`}},
		{"tls_mode object wrong", services(`[{"hostname": "a.example.com", "origin": "h:443", "tls_mode": {"kind": "x"}}]`), "", []string{`"tls_mode"`, `"mode"`}},
		{"proxy_protocol wrong", services(`[{"hostname": "a.example.com", "origin": "h:443", "proxy_protocol": "v3"}]`), "", []string{"use none, v1, v2"}},
		{"access wrong", services(`[{"hostname": "a.example.com", "origin": "h:443", "access": true}]`), "", []string{`"access": is true, want text in quotes`}},
		{"raw for tcp", tcp(`[{"name": "ssh", "origin": "h:22", "listen_port": 22, "carrier_policy": "raw"}]`), "", []string{"passthrough only"}},
		{"host_header with passthrough", services(`[{"hostname": "a.example.com", "origin": "h:443", "host_header": "x"}]`), "", []string{"set tls_mode to terminate"}},
		{"clear HTTP ports with passthrough", services(`[{"hostname": "a.example.com", "origin": "h:443", "http_ports": [80]}]`), "", []string{`"http_ports"`, "set tls_mode to terminate"}},
		{"clear HTTP port no list", services(`[{"hostname": "a.example.com", "origin": "http://h:1", "tls_mode": "terminate", "http_ports": 80}]`), "", []string{`"http_ports": is the number 80, want a list of at most 16 ports, as [80, 8080]`}},
		{"clear HTTP port wrong", services(`[{"hostname": "a.example.com", "origin": "http://h:1", "tls_mode": "terminate", "http_ports": [70000]}]`), "", []string{`"http_ports": value 70000 is out of range`}},
		{"clear HTTP port of a tcp service", ServiceLists{Services: `[{"hostname": "a.example.com", "origin": "http://h:1", "tls_mode": "terminate", "http_ports": [8080]}]`,
			TCP: `[{"name": "x", "origin": "h:22", "listen_port": 8080}]`}, "", []string{`tcp_services[0] (x): field "listen_port": port 8080 is a clear HTTP port of services[0] already`}},
		{"port and range", udp(`[{"name": "a", "origin": "h", "listen_port": 1, "listen_port_range": [1, 2]}]`), "", []string{"keep one of them"}},
		{"neither port nor range", udp(`[{"name": "a", "origin": "h:1"}]`), "", []string{"listen_port_range as [first, last]"}},
		{"range reversed", udp(`[{"name": "a", "origin": "h", "listen_port_range": [9, 2]}]`), "", []string{"smaller port first"}},
		{"range with one port", udp(`[{"name": "a", "origin": "h", "listen_port_range": [9]}]`), "", []string{"want [first, last]"}},
		{"range too long", udp(`[{"name": "a", "origin": "h", "listen_port_range": [1, 1000]}]`), "", []string{"1000 ports, at most 512"}},
		{"range with origin port", udp(`[{"name": "a", "origin": "h:5", "listen_port_range": [1, 10]}]`), "", []string{"leave the port out"}},
		{"idle out of range", udp(`[{"name": "a", "origin": "h:5", "listen_port": 1, "idle_timeout_secs": 4000}]`), "", []string{"use 1 to 3600"}},
		{"proxy_protocol v1 on udp", udp(`[{"name": "a", "origin": "h:5", "listen_port": 1, "proxy_protocol": "v1"}]`), "", []string{`"proxy_protocol": value "v1" is not known; use none, v2`}},
		{"names repeat", tcp(`[{"name": "a", "origin": "h:5", "listen_port": 1}, {"name": "a", "origin": "h:5", "listen_port": 2}]`), "", []string{"tcp_services[1]", "used by tcp_services[0] already"}},
		{"ports repeat", tcp(`[{"name": "a", "origin": "h:5", "listen_port": 1}, {"name": "b", "origin": "h:5", "listen_port": 1}]`), "", []string{"port 1 is used by tcp_services[0] (a)"}},
		{"ranges overlap", udp(`[{"name": "a", "origin": "h", "listen_port_range": [5, 9]}, {"name": "b", "origin": "h:5", "listen_port": 9}]`), "", []string{"port 9 is used by udp_services[0] (a)"}},
		{"host names repeat", services(`[{"hostname": "a.b", "origin": "h:1"}, {"hostname": "A.b", "origin": "h:1", "tls_mode": "terminate"}]`), "", []string{"a.b is used by services[0] already"}},
		{"every problem at once", tcp(`[{"nam": "a"}, {"name": "b", "origin": "h:5", "listen_port": 0}]`), "", []string{`field "nam"`, "value 0"}},
		{"YAML broken", ServiceLists{}, "services: [", []string{"not valid YAML"}},
		{"YAML is a list", ServiceLists{}, "- a", []string{"configuration file is a list"}},
		{"YAML number unquoted", ServiceLists{}, "tcp_services:\n  - name: 22\n    origin: h:22\n    listen_port: 22\n", []string{`tcp_services[0] (22), line 2: field "name": is the number 22, want text in quotes`}},
		{"YAML list twice", ServiceLists{}, "tcp_services: []\ntcp-services: []\n", []string{"tcp_services is there twice"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseServices(c.set, []byte(c.file))
			if err == nil {
				t.Fatalf("no error, got %v", got)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q\nlacks %q", err, w)
				}
			}
		})
	}
}

func FuzzServices(f *testing.F) {
	f.Add(exampleService, exampleTCP, exampleUDP, "")
	f.Add("", "", "", "services: &a [{hostname: a.b, origin: 'h:1'}]\nudp_services: *a\n")
	f.Add(`[{"hostname":"*.x.y","origin":"[::1]:9","tls_mode":{"mode":"terminate"}}]`, `null`, `[{"name":"a","origin":"h","listen_port_range":[1,2]}]`, "tcp-services:\n- {name: a, origin: tls://h:1, listen_port: 0x10}\n")
	f.Add(`[[[[[[[[[[[[[[`, `{}`, `[{"name":"\ud800","origin":"h:1","listen_port":1e3}]`, "a: *a")
	f.Fuzz(func(t *testing.T, s, tcp, udp, file string) {
		got, err := ParseServices(ServiceLists{Services: s, TCP: tcp, UDP: udp}, []byte(file))
		if err != nil {
			if got != nil {
				t.Error("an error and a result")
			}
			return
		}
		for _, d := range got {
			switch d.Kind {
			case kindTLS, kindHTTP:
				if d.Hostname == "" {
					t.Errorf("%v has no host name", d)
				}
			case kindTCP, kindUDP:
				if d.Port == 0 || d.Port > 65535 || d.PortLast > 65535 || d.Name == "" {
					t.Errorf("%v has a wrong port or no name", d)
				}
			default:
				t.Errorf("%v has no kind", d)
			}
			_, host, ok := strings.Cut(d.Origin.GetUrl(), "://")
			if !ok || host == "" || d.Key == "" {
				t.Errorf("%v has no origin or key", d)
			}
		}
	})
}
