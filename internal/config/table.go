// Package config is the settings of every program: one table gives each its flag, environment
// variable, YAML key, type and default. A flag wins over the environment, that over the file,
// that over the default.
package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program says which programs have a setting.
type Program uint8

// Programs; a setting may belong to several.
const (
	ForServer Program = 1 << iota
	ForAgent
	ForClient
)

func (p Program) String() string {
	switch p {
	case ForServer:
		return "server"
	case ForAgent:
		return "agent"
	case ForClient:
		return "client"
	}
	return "adit"
}

// Setting is one row of the table.
type Setting struct {
	// Name is the flag without dashes and the YAML key.
	Name string
	For  Program
	Kind Kind
	// Default as text; the data folder's is computed.
	Default string
	// Choices are the only values of a Word, or the only members of a Words list.
	Choices []string
	// Secret values are never printed, warn when given as a flag, and have a twin `<name>-file`.
	Secret bool
	// EmptyMeans is said when an empty value has a meaning, e.g. "off".
	EmptyMeans string
	// LongEnv replaces ADIT_ + the name in upper snake case.
	LongEnv string
	Help    string
}

// Env is the environment variable.
func (s *Setting) Env() string {
	if s.LongEnv != "" {
		return s.LongEnv
	}
	return "ADIT_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// DefaultText is the default as people see it.
func (s *Setting) DefaultText() string {
	if s.Name == "data-dir" {
		return DefaultDataDir()
	}
	return s.Default
}

// DefaultDataDir is /var/lib/adit for root and the user's data folder for others.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/adit"
	}
	if d := os.Getenv("XDG_DATA_HOME"); d != "" {
		return filepath.Join(d, "adit")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "adit-data"
	}
	return filepath.Join(home, ".local", "share", "adit")
}

// Carriers in the order in which an agent tries them.
const defaultCarriers = "quic,tls,ws"

var table = []Setting{
	{Name: "data-dir", For: ForServer | ForClient, Kind: Text, Help: "folder of database, keys and certificates"},
	{Name: "roles", For: ForServer, Kind: Words, Default: "hub,edge", Choices: []string{"hub", "edge", "relay"}, Help: "what this server is: hub, edge, or both"},
	{Name: "domain", For: ForServer, Kind: Text, Help: "base domain: tunnels are at <label>.<domain>"},
	{Name: "hub-host", For: ForServer, Kind: Text, Help: "host name of the hub (default hub.<domain>)"},
	{Name: "listen-https", For: ForServer, Kind: Address, Default: ":443", Help: "address for TLS and QUIC (TCP and UDP)"},
	{Name: "listen-http", For: ForServer, Kind: Address, Default: ":80", EmptyMeans: "off", Help: "address for plain HTTP: redirects and ACME HTTP-01; empty = off"},
	{Name: "listen-admin", For: ForServer, Kind: LocalAddress, Default: "127.0.0.1:9090", EmptyMeans: "off", Help: "address or unix:/path for /metrics, /healthz and /readyz; empty = off"},
	{Name: "advertise", For: ForServer, Kind: Words, Help: "addresses (host:port) that reach only this edge (default <hub-host>:<https port>)"},
	{Name: "database-url", For: ForServer, Kind: Text, Secret: true, Help: "database: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE (default sqlite:<data-dir>/adit.db)"},
	{Name: "tls", For: ForServer, Kind: Word, Choices: []string{"internal", "acme", "files"}, Help: "where certificates come from (default internal for names that cannot be public, else acme)"},
	{Name: "acme-email", For: ForServer, Kind: Text, Help: "address that the certificate authority may write to"},
	{Name: "acme-directory", For: ForServer, Kind: URL, Help: "directory of the certificate authority (default Let's Encrypt)"},
	{Name: "acme-ca-file", For: ForServer, Kind: Text, Help: "PEM file with the root of the ACME directory itself"},
	{Name: "acme-eab-kid", For: ForServer, Kind: Text, Help: "key id of the external account binding, where the ACME directory wants one"},
	{Name: "acme-eab-key", For: ForServer, Kind: Text, Secret: true, Help: "key of the external account binding (base64url)"},
	{Name: "cert-dir", For: ForServer, Kind: Text, Help: "folder of <name>.crt and <name>.key for --tls files (default <data-dir>/certs)"},
	{Name: "tcp-ports", For: ForServer, Kind: Ports, Default: "1024-65535", EmptyMeans: "none", Help: "public TCP ports that may be granted; empty = none"},
	{Name: "udp-ports", For: ForServer, Kind: Ports, Default: "1024-65535", EmptyMeans: "none", Help: "public UDP ports that may be granted; empty = none"},
	{Name: "proxy-protocol-from", For: ForServer, Kind: Networks, Help: "networks whose connections must start with a PROXY header"},
	{Name: "trusted-proxies", For: ForServer, Kind: Networks, Help: "networks whose X-Forwarded-* headers are believed"},
	{Name: "join", For: ForServer, Kind: Text, Secret: true, Help: "edge token: run as a further edge of an existing hub"},
	{Name: "region", For: ForServer, Kind: Text, Default: "default", Help: "region of this edge"},
	{Name: "max-snapshot-age", For: ForServer, Kind: Duration, Default: "0s", Help: "an edge cut off from the hub takes no new sessions after this; 0 = off"},
	{Name: "oidc-issuer", For: ForServer, Kind: Text, Help: "OpenID Connect provider that dashboard users sign in with, as https://accounts.example.com"},
	{Name: "oidc-client-id", For: ForServer, Kind: Text, Help: "this hub's client id at that provider"},
	{Name: "oidc-client-secret", For: ForServer, Kind: Text, Secret: true, Help: "this hub's client secret at that provider"},
	{Name: "oidc-groups-claim", For: ForServer, Kind: Text, Default: "groups", Help: "claim that lists a user's groups"},
	{Name: "oidc-admin-group", For: ForServer, Kind: Text, Help: "members of this group become admins (default none)"},
	{Name: "secret-key-file", For: ForServer, Kind: Text, Help: "key that seals secrets at rest; the same on all hubs of a PostgreSQL database (default with SQLite <data-dir>/secret.key)"},
	{Name: "drain-timeout", For: ForServer, Kind: Duration, Default: "25s", Help: "time that running connections get when the server stops"},
	{Name: "max-connections", For: ForServer, Kind: Count, Default: "15000", Help: "open visitor connections (at most 0.7 of the descriptor limit)"},
	{Name: "max-connections-per-address", For: ForServer, Kind: Count, Default: "1024", Help: "open connections of one visitor address (IPv6: of one /64)"},
	{Name: "max-connections-per-tunnel", For: ForServer, Kind: Count, Default: "8192", Help: "open connections of one tunnel"},
	{Name: "hello-timeout", For: ForServer, Kind: Duration, Default: "10s", Help: "time for a complete ClientHello"},
	{Name: "hello-max-bytes", For: ForServer, Kind: Size, Default: "16KiB", Help: "largest ClientHello"},
	{Name: "header-timeout", For: ForServer, Kind: Duration, Default: "10s", Help: "time for a complete request header"},
	{Name: "header-max-bytes", For: ForServer, Kind: Size, Default: "64KiB", Help: "largest request header"},
	{Name: "idle-timeout", For: ForServer, Kind: Duration, Default: "120s", Help: "idle time of a kept-alive visitor connection"},
	{Name: "body-idle-timeout", For: ForServer, Kind: Duration, Default: "60s", Help: "time without progress in a request body"},
	{Name: "response-header-timeout", For: ForServer, Kind: Duration, Default: "60s", Help: "time to a response header after the request was sent"},
	{Name: "half-closed-timeout", For: ForServer, Kind: Duration, Default: "5m", Help: "idle time of a connection that one side has closed"},

	{Name: "token", For: ForAgent, Kind: Text, Secret: true, Help: "invite or enrolment token"},
	{Name: "server-url", For: ForAgent | ForClient, Kind: URL, Help: "URL of the hub (agent default: from the token)"},
	{Name: "services", For: ForAgent, Kind: JSONList, LongEnv: "ADIT_AGENT_SERVICES", Help: "hostnames to expose, as a JSON list"},
	{Name: "tcp-services", For: ForAgent, Kind: JSONList, LongEnv: "ADIT_AGENT_TCP_SERVICES", Help: "TCP ports to expose, as a JSON list"},
	{Name: "udp-services", For: ForAgent, Kind: JSONList, LongEnv: "ADIT_AGENT_UDP_SERVICES", Help: "UDP ports to expose, as a JSON list"},
	{Name: "health-addr", For: ForAgent, Kind: LocalAddress, Default: "127.0.0.1:9091", EmptyMeans: "off", Help: "address or unix:/path for /healthz, /readyz and /metrics; empty = off"},
	{Name: "state-dir", For: ForAgent, Kind: Text, Help: "folder that keeps the edge list for a start without the hub (default none)"},
	{Name: "allow-target", For: ForAgent, Kind: Words, Help: "origins this agent may dial: networks, host names, *.names, each with an optional :port"},
	{Name: "deny-target", For: ForAgent, Kind: Words, Help: "origins this agent never dials; wins over --allow-target"},
	{Name: "discovery", For: ForAgent, Kind: Words, Default: "auto", Choices: []string{"auto", "off", "host", "docker", "kubernetes"}, Help: "where this agent looks for services to propose: auto (wherever it can), off, or a list of host (TCP ports of its own host, Linux), docker (ports and labels of containers) and kubernetes (Services of the cluster it runs in)"},
	{Name: "docker-socket", For: ForAgent, Kind: Text, Default: "/var/run/docker.sock", Help: "socket of Docker's API for discovery; the agent reads containers there and changes nothing"},
	{Name: "discovery-exclude-ports", For: ForAgent, Kind: Words, Default: "metrics,telemetry,health,probe", Help: "what discovery leaves out: ports, ranges first-last, and names of ports of Kubernetes Services; replaces the default"},
	{Name: "discovery-exclude-namespaces", For: ForAgent, Kind: Words, Help: "namespaces that discovery leaves out, beside kube-system, kube-public and kube-node-lease"},
	{Name: "discovery-include-system", For: ForAgent, Kind: Bool, Default: "false", Help: "discover Services in kube-system, kube-public and kube-node-lease too"},
	{Name: "discovery-include-headless", For: ForAgent, Kind: Bool, Default: "false", Help: "discover Services without a cluster address too"},
	{Name: "cluster-domain", For: ForAgent, Kind: Text, Help: "domain of the Kubernetes cluster's DNS (default: as the Pod's resolver or the cluster's DNS says, else cluster.local)"},
	{Name: "kubernetes-addresses", For: ForAgent, Kind: Bool, Default: "false", Help: "advertise the addresses of the node that the agent runs on (NODE_NAME) with the UDP node ports of --kubernetes-service"},
	{Name: "kubernetes-service", For: ForAgent, Kind: Text, Default: "adit-agent", Help: "Service whose UDP node ports lead to this agent"},
	{Name: "kubernetes-namespace", For: ForAgent, Kind: Text, Help: "namespace of --kubernetes-service (default POD_NAMESPACE, else that of the Pod's ServiceAccount)"},
	{Name: "extra-local-addrs", For: ForAgent, Kind: Words, Help: "further addresses to advertise, each host:port with IPv6 in brackets"},
	{Name: "allow-forward", For: ForAgent, Kind: Words, Help: "targets that `adit forward` may reach through this agent: networks, host names, *.names, each with an optional :port"},
	{Name: "origin-ca-file", For: ForAgent, Kind: Text, Help: "PEM file with roots trusted for https and tls origins, beside the system's"},
	{Name: "carriers", For: ForAgent, Kind: Words, Default: defaultCarriers, Choices: []string{"quic", "tls", "ws"}, Help: "order and choice of carriers"},
	{Name: "grace-period", For: ForAgent, Kind: Duration, Default: "25s", Help: "time that running streams get when the agent stops"},
	{Name: "origin-dial-timeout", For: ForServer | ForAgent, Kind: Duration, Default: "5s", Help: "time to connect to an origin; the shorter one of edge and agent counts"},
	{Name: "origin-keep-alive", For: ForAgent, Kind: Duration, Default: "30s", Help: "TCP keep-alive towards origins"},
	{Name: "max-lanes", For: ForAgent, Kind: Count, Default: "0", Help: "most lanes to one edge; 0 = as the edge asks"},
	{Name: "fail-fast", For: ForAgent, Kind: Bool, Default: "false", Help: "exit 1 if any service is refused"},

	{Name: "pprof", For: ForServer | ForAgent, Kind: Bool, Default: "false", Help: "serve Go profiles beside /metrics"},
	{Name: "disable-udp-gso", For: ForServer | ForAgent, Kind: Bool, Default: "false", Help: "send QUIC packets one by one, for drivers with broken segmentation offload"},
	{Name: "log-level", For: ForServer | ForAgent, Kind: Word, Default: "info", Choices: []string{"debug", "info", "warn", "error"}, Help: "least severe level that is logged"},
	{Name: "log-format", For: ForServer | ForAgent, Kind: Word, Choices: []string{"text", "json"}, Help: "text or json (default text on a terminal, else json)"},

	{Name: "api-key", For: ForClient, Kind: Text, Secret: true, Help: "API key"},
	{Name: "ca-file", For: ForClient, Kind: Text, Help: "PEM file with the root that signed the hub's certificate"},
}

// Settings are the rows of a program, in table order.
func Settings(p Program) []*Setting {
	var out []*Setting
	for i := range table {
		if table[i].For&p != 0 {
			out = append(out, &table[i])
		}
	}
	return out
}

// Lookup is the row of a name, nil if there is none.
func Lookup(name string) *Setting {
	i := slices.IndexFunc(table, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &table[i]
}

// aliases are names of other products' manifests. A value without a new name belongs to a
// feature that this version does not have; using it is said, never silent.
var aliases = []struct{ Old, New string }{
	{"HLE_SERVER_URL", "ADIT_SERVER_URL"},
	{"HLE_AGENT_TOKEN", "ADIT_TOKEN"},
	{"TOWONEL_INVITE_TOKEN", "ADIT_TOKEN"},
	{"HLE_API_KEY", "ADIT_API_KEY"},
	{"TOWONEL_AGENT_SERVICES", "ADIT_AGENT_SERVICES"},
	{"TOWONEL_AGENT_TCP_SERVICES", "ADIT_AGENT_TCP_SERVICES"},
	{"TOWONEL_AGENT_UDP_SERVICES", "ADIT_AGENT_UDP_SERVICES"},
	{"TOWONEL_DISABLE_UDP_GSO", "ADIT_DISABLE_UDP_GSO"},
	{"TOWONEL_AGENT_HEALTH_LISTEN_ADDR", "ADIT_HEALTH_ADDR"},
	{"HLE_DISCOVERY_EXCLUDE_NAMESPACES", "ADIT_DISCOVERY_EXCLUDE_NAMESPACES"},
	// What the charts hand on already.
	{"ADIT_RELAY_URL", ""},
	{"ADIT_DIRECT_PORT", ""},
	{"TOWONEL_AGENT_RELAY_URL", ""},
	{"TOWONEL_HUB_RELAY_URL", ""},
	{"TOWONEL_AGENT_IROH_PORT", ""},
	{"TOWONEL_AGENT_EXTRA_LOCAL_ADDRS", "ADIT_EXTRA_LOCAL_ADDRS"},
	{"TOWONEL_AGENT_K8S_AUTODISCOVER", "ADIT_KUBERNETES_ADDRESSES"},
	{"TOWONEL_AGENT_K8S_SERVICE", "ADIT_KUBERNETES_SERVICE"},
	{"TOWONEL_AGENT_K8S_NAMESPACE", "ADIT_KUBERNETES_NAMESPACE"},
}
