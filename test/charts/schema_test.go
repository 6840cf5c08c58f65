package charts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/test/charts"
)

var all = []string{"adit", "adit-agent", "adit-server"}

// least are values that each chart installs with.
var least = map[string]string{"adit": alone, "adit-agent": "agent: {inviteTokenSecret: {name: token}}\n", "adit-server": "domain: example.com\n"}

func TestSchemas(t *testing.T) {
	for _, chart := range all {
		t.Run("TOW-3 unknown values are refused at every depth, global and enabled are not: "+chart, func(t *testing.T) {
			must(t, chart, least[chart]+"global: {anything: {at: all}}\nenabled: true\n")
			for _, set := range []string{"imge.tag=x", "image.tga=x", "enabeld=true", "serviceAccount.nam=x", prefix(chart) + "terminationGracePeriodSecond=1"} {
				if err := refused(t, chart, least[chart], "--set", set); !strings.Contains(err, "not allowed") {
					t.Errorf("%s: %s", set, err)
				}
			}
			for _, set := range []string{"image.pullPolicy=Sometimes", "image.digest=sha256:12", "image.tag=1", "log.format=xml", `commonLabels.app\.kubernetes\.io/name=x`, prefix(chart) + "terminationGracePeriodSeconds=5", prefix(chart) + "networkPolicy.enabled=maybe"} {
				if err := refused(t, chart, least[chart], "--set", set); !strings.Contains(err, "specifications of the schema") {
					t.Errorf("%s: %s", set, err)
				}
			}
		})
		t.Run("every value has a default, a description and a place in the schema: "+chart, func(t *testing.T) {
			var v map[string]any
			values(t, chart, &v)
			described(t, schema(t, chart), v, "", "global", "enabled", "controllers.main.type", "directConnect.port")
		})
		t.Run("helm lint, also by the major version before: "+chart, func(t *testing.T) {
			for _, tool := range []string{"helm", "helm3"} {
				if _, err := run(t, least[chart], tool, "lint", "--strict", charts.Dir(chart), "--values", "-"); err != nil {
					t.Errorf("%s: %v", tool, err)
				}
			}
			old, err := run(t, least[chart], "helm3", "template", "r", charts.Dir(chart), "--namespace", "ns", "--kube-version", "1.37.2", "--values", "-")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "objects by helm 3", parse(t, old).names(), must(t, chart, least[chart]).names()...)
		})
	}
	t.Run("impossible services are refused as the agent would refuse them", sameAsAgent)
}

// TestNotes: what is printed after an installation names the next command, and a namespace before what
// is made in it.
func TestNotes(t *testing.T) {
	for _, c := range []struct{ chart, values, want string }{
		{"adit", alone, "rollout status deployment/r-adit-agent"},
		{"adit", withSecret, "create secret generic hle-agent --from-literal=agent-token=TOKEN"},
		{"adit", "operator: {enabled: false}\n", "adit agents create r"},
		{"adit-agent", least["adit-agent"], "create secret generic token --from-file=ADIT_TOKEN=agent.token"},
		{"adit-agent", testdata(t, "declared.yaml") + testdata(t, "direct.yaml"), "directConnect: the addresses of the node are advertised"},
		{"adit-server", least["adit-server"], "exec r-adit-server-0 -- /adit server setup-link"},
		{"adit-server", several, "advertises edge-$(POD_INDEX).example.com:443"},
		{"adit-server", joined + "edge: {kind: DaemonSet}\n", "rollout status daemonset/r-adit-server"},
	} {
		out, err := run(t, c.values, "helm", "install", "r", charts.Dir(c.chart), "--namespace", "ns", "--dry-run=client", "--values", "-")
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "NOTES:")
		if !strings.Contains(notes, c.want) {
			t.Errorf("%s with %s says %s; want %q", c.chart, c.values, notes, c.want)
		}
		if a, b := strings.Index(notes, "create namespace"), strings.Index(notes, "create secret"); b >= 0 && (a < 0 || a > b) {
			t.Errorf("%s makes a Secret before its namespace: %s", c.chart, notes)
		}
	}
}

type node = map[string]any

func schema(t *testing.T, chart string) node {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(charts.Dir(chart), "values.schema.json"))
	var s node
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// described walks a schema beside the defaults.
func described(t *testing.T, s node, v map[string]any, path string, without ...string) {
	t.Helper()
	props, _ := s["properties"].(node)
	for name := range v {
		if _, ok := props[name]; !ok && s["additionalProperties"] == false {
			t.Errorf("%s%s is not in the schema", path, name)
		}
	}
	for name, p := range props {
		p := p.(node)
		if d, _ := p["description"].(string); d == "" {
			t.Errorf("%s%s has no description", path, name)
		}
		def, ok := v[name]
		if !ok {
			if !slices.Contains(without, path+name) {
				t.Errorf("%s%s has no default in values.yaml", path, name)
			}
			continue
		}
		if sub, ok := def.(map[string]any); ok {
			described(t, p, sub, path+name+".", without...)
		}
	}
}

// sameAsAgent: whatever the schema accepts the agent accepts, as far as a schema can tell.
func sameAsAgent(t *testing.T) {
	for _, c := range []struct {
		list, entry string
		ok          bool
	}{
		{"services", `{hostname: a.b, origin: "c:443"}`, true},
		{"services", `{hostname: a.b, origin: "http://c", tls_mode: terminate, access: public, host_header: x, http_ports: [80]}`, true},
		{"services", `{hostname: a.b, origin: "c:443", tls_mode: {mode: passthrough}, carrier_policy: raw, proxy_protocol: v2}`, true},
		{"services", `{hostname: a.b}`, false},
		{"services", `{origin: "c:443"}`, false},
		{"services", `{hostname: a.b, origin: "c:443", listen_port: 1}`, false},
		{"services", `{hostname: a.b, origin: "c:443", tls_mode: ended}`, false},
		{"services", `{hostname: a.b, origin: "c:443", proxy_protocol: v3}`, false},
		{"services", `{hostname: a.b, origin: 443}`, false},
		{"tcpServices", `{name: a, origin: "c:22", listen_port: 2222}`, true},
		{"tcpServices", `{name: a, origin: "c:22"}`, false},
		{"tcpServices", `{name: a, origin: "c:22", listen_port: 0}`, false},
		{"tcpServices", `{name: a, origin: "c:22", listen_port: 70000}`, false},
		{"tcpServices", `{name: a, origin: "c:22", listen_port: "2222"}`, false},
		{"tcpServices", `{name: a, origin: "c:22", listen_port: 2222, carrier_policy: raw}`, false},
		{"udpServices", `{name: a, origin: "c:1", listen_port: 1, idle_timeout_secs: 60}`, true},
		{"udpServices", `{name: a, origin: c, listen_port_range: [2000, 2009]}`, true},
		{"udpServices", `{name: a, origin: "c:1", listen_port: 1, listen_port_range: [1, 2]}`, false},
		{"udpServices", `{name: a, origin: c}`, false},
		{"udpServices", `{name: a, origin: c, listen_port_range: [2000]}`, false},
		{"udpServices", `{name: a, origin: "c:1", listen_port: 1, idle_timeout_secs: 3601}`, false},
		{"udpServices", `{name: a, origin: "c:1", listen_port: 1, proxy_protocol: v1}`, false},
	} {
		_, err := template(t, "adit-agent", fmt.Sprintf("agent:\n  inviteTokenSecret: {name: token}\n  %s: [%s]\n", c.list, c.entry))
		if (err == nil) != c.ok {
			t.Errorf("the schema on %s %s: %v", c.list, c.entry, err)
		}
		text, err := yaml.YAMLToJSON([]byte("[" + c.entry + "]"))
		if err != nil {
			t.Fatal(err)
		}
		l := config.ServiceLists{}
		*map[string]*string{"services": &l.Services, "tcpServices": &l.TCP, "udpServices": &l.UDP}[c.list] = string(text)
		if _, err := config.ParseServices(l, nil); (err == nil) != c.ok {
			t.Errorf("the agent on %s %s: %v", c.list, c.entry, err)
		}
	}
}

// variants are values that render everything that a chart can render.
var variants = []struct{ chart, name, values string }{
	{"adit", "with a value", alone}, {"adit", "with a Secret", withSecret},
	{"adit", "everything", alone + "  metrics: {enabled: true, prometheusRule: {enabled: true}, dashboard: {enabled: true}}\n  networkPolicy: {enabled: true}\n  allowTargets: [a.b]\n  discovery: {excludeNamespaces: [x]}\n"},
	{"adit", "without discovery", alone + "  discovery: {enabled: false}\n  networkPolicy: {enabled: true}\n"},
	{"adit-agent", "least", least["adit-agent"]},
	{"adit-agent", "everything", "controllers: {main: {annotations: {reloader.stakater.com/auto: 'true'}}}\nagent:\n  inviteTokenSecret: {name: token, key: k}\n  services: [{hostname: a.b, origin: 'c.d.svc:443'}]\n  tcpServices: [{name: t, origin: 'e:22', listen_port: 2222}]\n  udpServices: [{name: u, origin: '10.0.0.1:3', listen_port: 3}]\ndirectConnect: {enabled: true, nodePort: 31820}\nserviceMonitor: {main: {enabled: true}}\nmetrics: {prometheusRule: {enabled: true}, dashboard: {enabled: true}}\nnetworkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {}}], extraEgress: [{ports: [{port: 1}]}]}\nextraEnv: [{name: A, value: b}]\n"},
	{"adit-agent", "host network", least["adit-agent"] + "hostNetwork: true\ncontrollers: {main: {strategy: Recreate}}\n"},
	{"adit-server", "least", least["adit-server"]},
	{"adit-server", "everything", "domain: example.com\ntcpPorts: [2222, '20000-20003']\nudpPorts: [3478]\ntls: {mode: files, certificates: [{name: '*.example.com', secret: w}]}\noidc: {issuer: 'https://a.b', clientId: c, existingSecret: o}\nmetrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}\nnetworkPolicy: {enabled: true}\nservice: {ipFamilyPolicy: PreferDualStack}\npersistence: {storageClass: fast, annotations: {a: b}}\nhostAliases: [{ip: 10.0.0.1, hostnames: [a]}]\n"},
	{"adit-server", "several", several + "metrics: {serviceMonitor: {enabled: true}}\nnetworkPolicy: {enabled: true}\n"},
	{"adit-server", "PostgreSQL by URL", "domain: example.com\ndatabase: {url: 'postgres://a:b@c/d'}\nsecretKey: {existingSecret: k}\npersistence: {enabled: false}\nroles: [hub]\n"},
	{"adit-server", "edges on hosts", joined + "edge: {kind: DaemonSet}\ntcpPorts: ['1024-65535']\nnetworkPolicy: {enabled: true}\n"},
	{"adit-server", "edges", joined + "replicas: 3\nedge: {advertise: 'e$(POD_INDEX).example.com:443', servicePerPod: {type: NodePort}}\n"},
}

func TestReleases(t *testing.T) {
	t.Run("K23 uninstalling a chart takes no custom resource with it", func(t *testing.T) {
		for _, v := range variants {
			if all := must(t, v.chart, v.values); all.count("CustomResourceDefinition") != 0 {
				t.Errorf("%s owns a CustomResourceDefinition", v.chart)
			}
			if _, err := os.Stat(filepath.Join(charts.Dir(v.chart), "crds")); err == nil {
				t.Errorf("%s has a folder crds, which Helm never upgrades", v.chart)
			}
		}
	})
	t.Run("K24 no chart asks for more rights than its program uses", func(t *testing.T) {
		may := []string{"ClusterRole: [] services,endpoints: get,list,watch", "ClusterRole: [] nodes: get", "Role: [] services named r-adit-agent-direct: get"}
		for _, v := range variants {
			all := must(t, v.chart, v.values)
			for _, r := range rules(t, all) {
				if !slices.Contains(may, r) {
					t.Errorf("%s, %s: %s", v.chart, v.name, r)
				}
			}
			if spec := podSpec(t, all); len(rules(t, all)) == 0 && *spec.AutomountServiceAccountToken {
				t.Errorf("%s, %s: a token that may do nothing is mounted", v.chart, v.name)
			}
		}
	})
	t.Run("K36 two releases share no name, in one namespace or two", func(t *testing.T) {
		for _, v := range variants {
			seen := map[string]string{}
			for _, r := range [][2]string{{"one", "a"}, {"two", "a"}, {"one", "b"}} {
				all, err := templateAs(t, r[0], r[1], v.chart, v.values)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range all {
					key := o.Kind + " " + o.Namespace + "/" + o.Name
					if other, ok := seen[key]; ok {
						t.Errorf("%s, %s: %s of %v is there already, of %s", v.chart, v.name, key, r, other)
					}
					seen[key] = fmt.Sprint(r)
					if namespaced := !strings.HasPrefix(o.Kind, "ClusterRole"); namespaced != (o.Namespace == r[1]) {
						t.Errorf("%s has the namespace %q", key, o.Namespace)
					}
				}
			}
		}
	})
	t.Run("K36 long names of releases and namespaces fit", func(t *testing.T) {
		for _, v := range variants {
			all, err := templateAs(t, strings.Repeat("r", 53), strings.Repeat("n", 63), v.chart, v.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				if limit := map[string]int{"Service": 63, "StatefulSet": 52}[o.Kind]; len(o.Name) > max(limit, 253) || limit != 0 && len(o.Name) > limit {
					t.Errorf("%s %s has %d characters", o.Kind, o.Name, len(o.Name))
				}
			}
		}
	})
}
