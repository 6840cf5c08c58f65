package charts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/adit-dev/adit/internal/config"
)

const (
	postgres = "domain: example.com\ndatabase: {existingSecret: db}\nsecretKey: {existingSecret: key}\n"
	several  = postgres + "replicas: 2\nedge: {advertise: 'edge-$(POD_INDEX).example.com:443'}\n"
	joined   = "roles: [edge]\njoin: {existingSecret: edge}\n"
)

// TestServer is about chart/adit-server.
func TestServer(t *testing.T) {
	t.Run("a domain is enough: one Pod with a volume and a load balancer", func(t *testing.T) {
		all := must(t, "adit-server", "domain: example.com\n")
		s := get[appsv1.StatefulSet](t, all, "StatefulSet", "")
		if *s.Spec.Replicas != 1 || len(s.Spec.VolumeClaimTemplates) != 1 || s.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPath != "/var/lib/adit" {
			t.Errorf("%+v", s.Spec)
		}
		svc := get[corev1.Service](t, all, "Service", "r-adit-server")
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			t.Errorf("%+v", svc.Spec)
		}
		same(t, "ports", ports(svc), "TCP/443", "UDP/443", "TCP/80")
		e := env(s.Spec.Template.Spec.Containers[0])
		if e["ADIT_TCP_PORTS"] != "" || e["ADIT_UDP_PORTS"] != "" || *s.Spec.Template.Spec.AutomountServiceAccountToken {
			t.Errorf("raw ports may be claimed that no Service leads to: %v", e)
		}
	})
	t.Run("raw ports are those of the Service", func(t *testing.T) {
		all := must(t, "adit-server", "domain: example.com\ntcpPorts: [2222, '20000-20002']\nudpPorts: [3478]\nservice: {type: NodePort, http: false, nodePorts: {https: 30443}}\n")
		svc := get[corev1.Service](t, all, "Service", "r-adit-server")
		same(t, "ports", ports(svc), "TCP/443", "UDP/443", "TCP/2222", "TCP/20000", "TCP/20001", "TCP/20002", "UDP/3478")
		if svc.Spec.Ports[0].NodePort != 30443 || svc.Spec.Ports[1].NodePort != 30443 {
			t.Errorf("node ports %+v", svc.Spec.Ports)
		}
		e := env(podSpec(t, all).Containers[0])
		if e["ADIT_TCP_PORTS"] != "2222,20000-20002" || e["ADIT_UDP_PORTS"] != "3478" || e["ADIT_LISTEN_HTTP"] != "" {
			t.Errorf("%v", e)
		}
	})
	t.Run("several Pods have an address and a Service each", func(t *testing.T) {
		all := must(t, "adit-server", several)
		for _, name := range []string{"r-adit-server-0", "r-adit-server-1"} {
			s := get[corev1.Service](t, all, "Service", name)
			if s.Spec.Selector["statefulset.kubernetes.io/pod-name"] != name {
				t.Errorf("%s selects %v", name, s.Spec.Selector)
			}
		}
		spec := podSpec(t, all)
		names := []string{}
		for _, e := range spec.Containers[0].Env {
			names = append(names, e.Name)
		}
		// A variable can be filled in only where it stands before.
		if slices.Index(names, "POD_INDEX") > slices.Index(names, "ADIT_ADVERTISE") || env(spec.Containers[0])["ADIT_ADVERTISE"] != "edge-$(POD_INDEX).example.com:443" {
			t.Errorf("%v", names)
		}
		if all.count("PodDisruptionBudget") != 1 || len(spec.TopologySpreadConstraints) != 2 {
			t.Errorf("no disruption budget or no spread: %v", all.names())
		}
	})
	t.Run("PostgreSQL and its key come from Secrets", func(t *testing.T) {
		spec := podSpec(t, must(t, "adit-server", postgres))
		e := env(spec.Containers[0])
		if e["ADIT_DATABASE_URL_FILE"] != "/etc/adit/database/database-url" || e["ADIT_SECRET_KEY_FILE"] != "/etc/adit/secret-key/secret.key" {
			t.Errorf("%v", e)
		}
		all := must(t, "adit-server", "domain: example.com\ndatabase: {url: 'postgres://adit:secret@db/adit'}\nsecretKey: {existingSecret: key}\n")
		if n := strings.Count(all.text(), "adit:secret@"); n != 1 || all.count("Secret") != 1 {
			t.Errorf("the password is there %d times", n)
		}
	})
	t.Run("further edges on the hosts' network", func(t *testing.T) {
		all := must(t, "adit-server", joined+"edge: {kind: DaemonSet}\n")
		d := get[appsv1.DaemonSet](t, all, "DaemonSet", "")
		spec := d.Spec.Template.Spec
		e := env(spec.Containers[0])
		if !spec.HostNetwork || e["ADIT_ADVERTISE"] != "$(HOST_IP):443" || e["ADIT_JOIN_FILE"] != "/etc/adit/join/edge-token" || e["ADIT_ROLES"] != "edge" || len(spec.SecurityContext.Sysctls) != 0 {
			t.Errorf("%v %+v", e, spec.SecurityContext)
		}
		if c := spec.Containers[0].SecurityContext; len(c.Capabilities.Add) != 1 || *c.AllowPrivilegeEscalation || c.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%+v", c)
		}
		if spec.Volumes[0].HostPath.Path != "/var/lib/adit/ns-r-adit-server" {
			t.Errorf("identity of the edge is kept in %+v", spec.Volumes[0])
		}
	})
	t.Run("certificates from Secrets", func(t *testing.T) {
		spec := podSpec(t, must(t, "adit-server", "domain: example.com\ntls: {mode: files, certificates: [{name: '*.example.com', secret: wildcard}, {name: hub.example.com, secret: hub}]}\n"))
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "certs" })
		if s := spec.Volumes[i].Projected.Sources; len(s) != 2 || s[0].Secret.Items[0].Path != "_wildcard.example.com.crt" || s[1].Secret.Items[1].Path != "hub.example.com.key" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("what cannot work is refused with the remedy", func(t *testing.T) {
		for values, want := range map[string]string{
			"": "domain is required",
			"domain: example.com\ndatabase: {existingSecret: db}\n": "secretKey.existingSecret is required",
			"domain: example.com\nreplicas: 2\n":                    "SQLite is a file of one Pod",
			"domain: example.com\npersistence: {enabled: false}\n":  "SQLite keeps everything on the volume",
			"domain: example.com\nedge: {kind: DaemonSet}\n":        "DaemonSet is for further edges",
			several + "persistence: {existingClaim: x}\n":           "is one volume",
			"roles: [edge]\n":          "join.existingSecret is required",
			joined:                     "edge.advertise is required",
			postgres + "replicas: 2\n": "edge.advertise is required",
			postgres + "replicas: 2\nedge: {advertise: 'a.example.com:443'}\n":                                        "write $(POD_INDEX)",
			"domain: example.com\njoin: {existingSecret: x}\n":                                                        "roles has hub",
			"domain: example.com\ntls: {mode: files}\n":                                                               "tls.certificates names no Secret",
			"domain: example.com\ntls: {certificates: [{name: a.b, secret: c}]}\n":                                    "tls.mode files only",
			"domain: example.com\noidc: {issuer: 'https://a.b'}\n":                                                    "oidc.clientId",
			"domain: example.com\ntcpPorts: ['1024-65535']\n":                                                         "a Service carries about 250",
			"domain: example.com\ntcpPorts: ['30-20']\n":                                                              "not a port",
			"domain: example.com\ndatabase: {url: 'postgres://a', existingSecret: b}\nsecretKey: {existingSecret: k}": "give one of them",
			"domain: example.com\nroles: [relay]\n":                                                                   "/roles/0",
			"domain: Example.com\n":                                                                                   "/domain",
			"domain: example.com\ndatabase: {url: 'mysql://x'}\n":                                                     "/database/url",
		} {
			if err := refused(t, "adit-server", values); !strings.Contains(err, want) {
				t.Errorf("%q: %s; want %q", values, err, want)
			}
		}
	})
	t.Run("every variable is a setting of the server", func(t *testing.T) {
		full := "domain: example.com\nhubHost: hub.example.com\ntls: {mode: acme, acme: {email: a@b.c, directory: 'https://ca', eab: {keyId: k, existingSecret: e}}}\noidc: {issuer: 'https://a.b', clientId: c, existingSecret: o, adminGroup: g}\ntrustedProxies: [10.0.0.0/8]\nproxyProtocolFrom: [10.0.0.0/8]\n"
		known(t, config.ForServer, env(podSpec(t, must(t, "adit-server", full)).Containers[0]), "POD_NAME", "POD_INDEX", "NODE_NAME", "HOST_IP")
		known(t, config.ForServer, env(podSpec(t, must(t, "adit-server", several, "--set", "edge.region=x")).Containers[0]), "POD_NAME", "POD_INDEX", "NODE_NAME", "HOST_IP")
		// These two come with the direct paths; the agent says so.
		known(t, config.ForAgent, env(podSpec(t, must(t, "adit-agent", testdata(t, "declared.yaml")+testdata(t, "direct.yaml")+"extraLocalAddrs: 'a.b:1'\nrelayUrl: 'turn:a.b'\nserver: {url: 'https://a.b'}\n")).Containers[0]),
			"POD_NAMESPACE", "NODE_NAME", "HOST_IPS", "ADIT_DIRECT_PORT", "ADIT_RELAY_URL")
		known(t, config.ForAgent, env(podSpec(t, must(t, "adit", alone+"  allowTargets: [a.b]\n  discovery: {excludeNamespaces: [x]}\nserver: {url: 'https://a.b'}\n")).Containers[0]), "POD_NAMESPACE", "HOST_IPS")
	})
	restricted(t, "adit-server", "domain: example.com\n")
	restricted(t, "adit-server", several)
}

func known(t *testing.T, p config.Program, env map[string]string, others ...string) {
	t.Helper()
	for name := range env {
		ok := slices.Contains(others, name)
		for _, s := range config.Settings(p) {
			ok = ok || name == s.Env() || s.Secret && name == s.Env()+"_FILE"
		}
		if !ok {
			t.Errorf("%s is no setting of the %s", name, p)
		}
	}
}

func ports(s *corev1.Service) []string {
	var out []string
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%s/%d", p.Protocol, p.Port))
	}
	return out
}
