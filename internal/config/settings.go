package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/v2"
)

// Server are the settings of `adit server`.
type Server struct {
	DataDir                  string         `koanf:"data-dir"`
	Roles                    []string       `koanf:"roles"`
	Domain                   string         `koanf:"domain"`
	HubHost                  string         `koanf:"hub-host"`
	ListenHTTPS              string         `koanf:"listen-https"`
	ListenHTTP               string         `koanf:"listen-http"`
	ListenAdmin              string         `koanf:"listen-admin"`
	PProf                    bool           `koanf:"pprof"`
	Advertise                []string       `koanf:"advertise"`
	DatabaseURL              string         `koanf:"database-url"`
	TLS                      string         `koanf:"tls"`
	ACMEEmail                string         `koanf:"acme-email"`
	ACMEDirectory            string         `koanf:"acme-directory"`
	ACMECAFile               string         `koanf:"acme-ca-file"`
	ACMEEABKey               string         `koanf:"acme-eab-key"`
	ACMEEABKeyID             string         `koanf:"acme-eab-kid"`
	CertDir                  string         `koanf:"cert-dir"`
	TCPPorts                 []PortRange    `koanf:"tcp-ports"`
	UDPPorts                 []PortRange    `koanf:"udp-ports"`
	ProxyProtocolFrom        []netip.Prefix `koanf:"proxy-protocol-from"`
	TrustedProxies           []netip.Prefix `koanf:"trusted-proxies"`
	Join                     string         `koanf:"join"`
	Region                   string         `koanf:"region"`
	MaxSnapshotAge           time.Duration  `koanf:"max-snapshot-age"`
	SecretKeyFile            string         `koanf:"secret-key-file"`
	OIDCIssuer               string         `koanf:"oidc-issuer"`
	OIDCClientID             string         `koanf:"oidc-client-id"`
	OIDCClientSecret         string         `koanf:"oidc-client-secret"`
	OIDCGroupsClaim          string         `koanf:"oidc-groups-claim"`
	OIDCAdminGroup           string         `koanf:"oidc-admin-group"`
	DrainTimeout             time.Duration  `koanf:"drain-timeout"`
	MaxConnections           int            `koanf:"max-connections"`
	MaxConnectionsPerAddress int            `koanf:"max-connections-per-address"`
	MaxConnectionsPerTunnel  int            `koanf:"max-connections-per-tunnel"`
	HelloTimeout             time.Duration  `koanf:"hello-timeout"`
	HelloMaxBytes            int            `koanf:"hello-max-bytes"`
	HeaderTimeout            time.Duration  `koanf:"header-timeout"`
	HeaderMaxBytes           int            `koanf:"header-max-bytes"`
	IdleTimeout              time.Duration  `koanf:"idle-timeout"`
	BodyIdleTimeout          time.Duration  `koanf:"body-idle-timeout"`
	OriginDialTimeout        time.Duration  `koanf:"origin-dial-timeout"`
	ResponseHeaderTimeout    time.Duration  `koanf:"response-header-timeout"`
	HalfClosedTimeout        time.Duration  `koanf:"half-closed-timeout"`
	DisableUDPGSO            bool           `koanf:"disable-udp-gso"`
	LogLevel                 string         `koanf:"log-level"`
	LogFormat                string         `koanf:"log-format"`
	// AdminDefault is true when nobody chose the admin address: a busy one may be replaced.
	AdminDefault bool `koanf:"-"`
}

// Hub and Edge report the roles.
func (s *Server) Hub() bool { return slices.Contains(s.Roles, "hub") }

// Edge reports whether this server is an edge.
func (s *Server) Edge() bool { return slices.Contains(s.Roles, "edge") }

// Agent are the settings of `adit agent`.
type Agent struct {
	// Token is empty when TokenFile is set: the agent reads it again when it changes.
	Token     string `koanf:"token"`
	TokenFile string `koanf:"-"`
	// ConfigFile holds the lists that Services does not; the agent reads it again when it changes.
	ConfigFile            string        `koanf:"-"`
	Lists                 ServiceLists  `koanf:"-"`
	ServerURL             string        `koanf:"server-url"`
	HealthAddr            string        `koanf:"health-addr"`
	PProf                 bool          `koanf:"pprof"`
	StateDir              string        `koanf:"state-dir"`
	AllowTarget           []string      `koanf:"allow-target"`
	DenyTarget            []string      `koanf:"deny-target"`
	AllowForward          []string      `koanf:"allow-forward"`
	Discovery             []string      `koanf:"discovery"`
	DockerSocket          string        `koanf:"docker-socket"`
	DiscoveryExcludePorts []string      `koanf:"discovery-exclude-ports"`
	ExcludeNamespaces     []string      `koanf:"discovery-exclude-namespaces"`
	IncludeSystem         bool          `koanf:"discovery-include-system"`
	IncludeHeadless       bool          `koanf:"discovery-include-headless"`
	ClusterDomain         string        `koanf:"cluster-domain"`
	KubernetesAddresses   bool          `koanf:"kubernetes-addresses"`
	KubernetesService     string        `koanf:"kubernetes-service"`
	KubernetesNamespace   string        `koanf:"kubernetes-namespace"`
	ExtraLocalAddrs       []string      `koanf:"extra-local-addrs"`
	OriginCAFile          string        `koanf:"origin-ca-file"`
	Carriers              []string      `koanf:"carriers"`
	GracePeriod           time.Duration `koanf:"grace-period"`
	OriginDialTimeout     time.Duration `koanf:"origin-dial-timeout"`
	OriginKeepAlive       time.Duration `koanf:"origin-keep-alive"`
	MaxLanes              int           `koanf:"max-lanes"`
	FailFast              bool          `koanf:"fail-fast"`
	DisableUDPGSO         bool          `koanf:"disable-udp-gso"`
	LogLevel              string        `koanf:"log-level"`
	LogFormat             string        `koanf:"log-format"`
	// HealthDefault is true when nobody chose the health address: a busy one may be replaced.
	HealthDefault bool `koanf:"-"`
}

// Client are the settings of the management commands.
type Client struct {
	DataDir   string `koanf:"data-dir"`
	ServerURL string `koanf:"server-url"`
	APIKey    string `koanf:"api-key"`
	CAFile    string `koanf:"ca-file"`
}

// Line is one effective setting as `adit config print` shows it.
type Line struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
	Env    string `json:"env"`
}

// Lines are the effective settings, secrets hidden, in table order.
func (v *Values) Lines() []Line {
	var out []Line
	for _, s := range Settings(v.Program) {
		val := v.text[s.Name]
		if s.Secret && val != "" {
			val = "(hidden)"
		}
		out = append(out, Line{Name: s.Name, Value: val, Source: v.source[s.Name], Env: s.Env()})
	}
	return out
}

// Source is where a setting came from: "default", "flag --x", "environment X", "file F, key x".
func (v *Values) Source(name string) string { return v.source[name] }

func (v *Values) decode(out any) error {
	return v.k.UnmarshalWithConf("", out, koanf.UnmarshalConf{FlatPaths: true})
}

func (v *Values) errorf(field, format string, args ...any) error {
	src := v.source[field]
	if src == "default" {
		src = ""
	}
	return &Error{Field: field, Source: src, Problem: fmt.Sprintf(format, args...)}
}

// Client decodes the settings of a management command.
func (v *Values) Client() (*Client, error) {
	c := &Client{}
	return c, v.decode(c)
}

// Agent decodes and checks the settings of an agent.
func (v *Values) Agent() (*Agent, error) {
	a := &Agent{}
	if err := v.decode(a); err != nil {
		return nil, err
	}
	var errs []error
	if a.Token == "" {
		errs = append(errs, v.errorf("token", "is required; set ADIT_TOKEN_FILE or --token-file to a file that holds the invite token"))
	}
	if len(a.Carriers) == 0 {
		errs = append(errs, v.errorf("carriers", "names no carrier; use a comma list of quic, tls, ws"))
	}
	a.HealthDefault = v.source["health-addr"] == "default"
	if path := v.secretFile["token"]; path != "" && path != "-" {
		a.Token, a.TokenFile = "", path
	}
	a.ConfigFile = v.file
	list := func(name string) string {
		if v.fromFile[name] {
			return ""
		}
		return v.text[name]
	}
	a.Lists = ServiceLists{Services: list("services"), TCP: list("tcp-services"), UDP: list("udp-services")}
	return a, errors.Join(errs...)
}

// Server decodes the settings of a server, fills in those that follow from others, and checks
// that they fit together.
func (v *Values) Server() (*Server, error) {
	s := &Server{}
	if err := v.decode(s); err != nil {
		return nil, err
	}
	s.AdminDefault = v.source["listen-admin"] == "default"
	var errs []error
	add := func(field, format string, args ...any) { errs = append(errs, v.errorf(field, format, args...)) }
	if slices.Contains(s.Roles, "relay") {
		add("roles", `"relay" is not in this version; use --roles hub,edge`)
	}
	if len(s.Roles) == 0 {
		add("roles", "names no role; use hub, edge or hub,edge")
	}
	v.checkJoin(s, add)
	if s.Hub() {
		v.checkNames(s, add)
	}
	for _, a := range s.Advertise {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || port == "0" {
			add("advertise", "%q is not host:port; write for example edge1.example.com:443", a)
		}
	}
	if s.TLS == "acme" && !s.Edge() && s.Hub() {
		add("tls", "acme needs the edge role in the same process; use --roles hub,edge, or --tls files or internal")
	}
	if (s.ACMEEABKeyID == "") != (s.ACMEEABKey == "") {
		add("acme-eab-kid", "and acme-eab-key belong together; give both or neither")
	}
	v.checkOIDC(s, add)
	if s.DataDir == "" {
		add("data-dir", "is empty; name a folder")
	}
	if s.Hub() && isPostgres(s.DatabaseURL) && s.SecretKeyFile == "" {
		add("secret-key-file", needsSecretKey)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.derive()
	return s, nil
}

func (v *Values) checkJoin(s *Server, add func(field, format string, args ...any)) {
	joined := s.Edge() && !s.Hub()
	switch {
	case s.Join != "" && s.Hub():
		add("join", "makes a further edge of an existing hub, but the roles include hub; use --roles edge")
	case joined && s.Join == "":
		add("join", "is required with --roles edge; create a token with `adit edge invite` on the hub and set ADIT_JOIN_FILE to a file that holds it")
	case joined && len(s.Advertise) == 0:
		add("advertise", "is required with --join: agents must be able to dial this very edge; use for example --advertise edge2.example.com:443")
	}
}

func (v *Values) checkOIDC(s *Server, add func(field, format string, args ...any)) {
	if s.OIDCIssuer == "" {
		for field, value := range map[string]string{"oidc-client-id": s.OIDCClientID, "oidc-client-secret": s.OIDCClientSecret, "oidc-admin-group": s.OIDCAdminGroup} {
			if value != "" {
				add(field, "needs oidc-issuer; give --oidc-issuer https://…")
			}
		}
		return
	}
	u, err := url.Parse(s.OIDCIssuer)
	local := err == nil && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !local) {
		add("oidc-issuer", "%q is not an issuer; write for example https://accounts.example.com", s.OIDCIssuer)
	}
	if s.OIDCClientID == "" {
		add("oidc-client-id", "is required with oidc-issuer; register this hub at the provider")
	}
	if s.OIDCClientSecret == "" {
		add("oidc-client-secret", "is required with oidc-issuer; put it into a file and name it with --oidc-client-secret-file")
	}
}

func (v *Values) checkNames(s *Server, add func(field, format string, args ...any)) {
	s.Domain = strings.ToLower(strings.TrimSuffix(s.Domain, "."))
	s.HubHost = strings.ToLower(strings.TrimSuffix(s.HubHost, "."))
	if s.Domain == "" {
		add("domain", "is required; use --domain example.com: tunnels will be at <label>.example.com and the hub at hub.example.com")
		return
	}
	if !validHost(s.Domain) {
		add("domain", "%q is not a domain name; write for example example.com", s.Domain)
	}
	if s.HubHost != "" && !validHost(s.HubHost) {
		add("hub-host", "%q is not a host name; write for example hub.%s", s.HubHost, s.Domain)
	}
}

func (s *Server) derive() {
	if s.HubHost == "" && s.Domain != "" {
		s.HubHost = "hub." + s.Domain
	}
	if s.TLS == "" && s.Hub() {
		s.TLS = "acme"
		if !CanBePublic(s.HubHost) || !s.Edge() {
			s.TLS = "internal"
		}
	}
	if s.DatabaseURL == "" {
		s.DatabaseURL = "sqlite:" + filepath.Join(s.DataDir, "adit.db")
	}
	if s.CertDir == "" {
		s.CertDir = filepath.Join(s.DataDir, "certs")
	}
	if s.SecretKeyFile == "" {
		s.SecretKeyFile = filepath.Join(s.DataDir, "secret.key")
	}
}

const needsSecretKey = "is required with PostgreSQL, and must hold the same key on every hub of the database; make one with `openssl rand -base64 32`, keep it beside the backups, and name the file here"

// Store says where a server keeps its data.
type Store struct {
	DataDir       string `koanf:"data-dir"`
	DatabaseURL   string `koanf:"database-url"`
	SecretKeyFile string `koanf:"secret-key-file"`
}

// Store decodes where a server keeps its data, for commands that work on it.
func (v *Values) Store() (*Store, error) {
	s := &Server{}
	if err := v.decode(s); err != nil {
		return nil, err
	}
	if s.DataDir == "" {
		return nil, v.errorf("data-dir", "is empty; name a folder")
	}
	if isPostgres(s.DatabaseURL) && s.SecretKeyFile == "" {
		return nil, v.errorf("secret-key-file", needsSecretKey)
	}
	s.derive()
	return &Store{DataDir: s.DataDir, DatabaseURL: s.DatabaseURL, SecretKeyFile: s.SecretKeyFile}, nil
}

func isPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres:") || strings.HasPrefix(url, "postgresql:")
}

func validHost(h string) bool {
	if len(h) > 253 || h == "" {
		return false
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
		if strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
		}) {
			return false
		}
	}
	return true
}

// privateSuffixes cannot have certificates of a public authority.
var privateSuffixes = []string{"localhost", "test", "internal", "local", "lan", "home.arpa", "invalid", "example", "onion"}

// CanBePublic reports whether a public certificate authority could ever certify name.
func CanBePublic(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return false
	}
	for _, p := range privateSuffixes {
		if name == p || strings.HasSuffix(name, "."+p) {
			return false
		}
	}
	return true
}

// Secret is the value of a secret setting.
func (v *Values) Secret(name string) string { return v.text[name] }
