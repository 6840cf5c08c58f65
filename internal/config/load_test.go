package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/adit-dev/adit/internal/config"
)

func flags(t *testing.T, p config.Program, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.Bind(fs, p)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func line(t *testing.T, v *config.Values, name string) config.Line {
	t.Helper()
	for _, l := range v.Lines() {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no setting %s", name)
	return config.Line{}
}

func TestPrecedence(t *testing.T) {
	file := write(t, "adit.yaml", "listen-https: 127.0.0.1:3\ndrain-timeout: 3s\nregion: file\ntcp_ports: [2000-2010, 3000]\n")
	for _, c := range []struct {
		name, setting, value, source string
		args, env                    []string
		file                         string
	}{
		{name: "default", setting: "region", value: "default", source: "default"},
		{name: "file over default", setting: "region", value: "file", source: "file " + file + ", key region", file: file},
		{name: "environment over file", setting: "region", value: "env", source: "environment ADIT_REGION", file: file, env: []string{"ADIT_REGION=env"}},
		{name: "flag over environment", setting: "region", value: "flag", source: "flag --region", file: file, env: []string{"ADIT_REGION=env"}, args: []string{"--region", "flag"}},
		{name: "flag that says the default wins, too", setting: "region", value: "default", source: "flag --region", env: []string{"ADIT_REGION=env"}, args: []string{"--region", "default"}},
		{name: "empty environment is not set", setting: "region", value: "file", source: "file " + file + ", key region", file: file, env: []string{"ADIT_REGION="}},
		{name: "empty means off where it has a meaning", setting: "listen-http", value: "", source: "environment ADIT_LISTEN_HTTP", env: []string{"ADIT_LISTEN_HTTP="}},
		{name: "list in the file, key with underscores", setting: "tcp-ports", value: "2000-2010,3000", source: "file " + file + ", key tcp-ports", file: file},
		{name: "file named by the environment", setting: "region", value: "file", source: "file " + file + ", key region", env: []string{"ADIT_CONFIG=" + file}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := config.Load(config.Sources{Program: config.ForServer, Flags: flags(t, config.ForServer, c.args...), Environ: c.env, File: c.file})
			if err != nil {
				t.Fatal(err)
			}
			if got := line(t, v, c.setting); got.Value != c.value || got.Source != c.source {
				t.Errorf("%s = %q from %q, want %q from %q", c.setting, got.Value, got.Source, c.value, c.source)
			}
		})
	}
}

func TestSecrets(t *testing.T) {
	tokenFile := write(t, "token", "  from-file\n")
	other := write(t, "other", "from-other")
	load := func(env []string, args ...string) (*config.Values, error) {
		return config.Load(config.Sources{Program: config.ForAgent, Flags: flags(t, config.ForAgent, args...), Environ: env, Stdin: strings.NewReader("from-stdin\n")})
	}
	for _, c := range []struct {
		name, want string
		args, env  []string
		warns      bool
	}{
		{name: "environment", want: "plain", env: []string{"ADIT_TOKEN=plain"}},
		{name: "environment file", want: "from-file", env: []string{"ADIT_TOKEN_FILE=" + tokenFile}},
		{name: "flag file over environment value", want: "from-file", env: []string{"ADIT_TOKEN=plain"}, args: []string{"--token-file", tokenFile}},
		{name: "flag file over environment file", want: "from-other", env: []string{"ADIT_TOKEN_FILE=" + tokenFile}, args: []string{"--token-file", other}},
		{name: "flag value warns", want: "shown", args: []string{"--token", "shown"}, warns: true},
		{name: "standard input", want: "from-stdin", args: []string{"--token-file", "-"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := load(c.env, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.Secret("token"); got != c.want {
				t.Errorf("token %q, want %q", got, c.want)
			}
			if (len(v.Warnings) > 0) != c.warns {
				t.Errorf("warnings %q", v.Warnings)
			}
			if l := line(t, v, "token"); l.Value != "(hidden)" {
				t.Errorf("config print shows %q", l.Value)
			}
		})
	}
	t.Run("the agent reads a token file itself", func(t *testing.T) {
		v, err := load([]string{"ADIT_TOKEN_FILE=" + tokenFile})
		if err != nil {
			t.Fatal(err)
		}
		a, err := v.Agent()
		if err != nil || a.Token != "" || a.TokenFile != tokenFile {
			t.Errorf("%+v, %v", a, err)
		}
	})
	t.Run("TOW-6 a folder holds the token as ADIT_TOKEN, else under an accepted name", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := load([]string{"ADIT_TOKEN_FILE=" + dir}); err == nil || !strings.Contains(err.Error(), "has none of the files ADIT_TOKEN, HLE_AGENT_TOKEN, TOWONEL_INVITE_TOKEN") {
			t.Errorf("an empty folder: %v", err)
		}
		for _, name := range []string{"TOWONEL_INVITE_TOKEN", "ADIT_TOKEN"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("of "+name), 0o600); err != nil {
				t.Fatal(err)
			}
			v, err := load([]string{"ADIT_TOKEN_FILE=" + dir})
			if err != nil {
				t.Fatal(err)
			}
			a, err := v.Agent()
			if err != nil || a.TokenFile != filepath.Join(dir, name) || v.Secret("token") != "of "+name {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
		}
	})
	t.Run("both at once", func(t *testing.T) {
		_, err := load([]string{"ADIT_TOKEN=plain", "ADIT_TOKEN_FILE=" + tokenFile})
		if err == nil || !strings.Contains(err.Error(), "given twice") {
			t.Errorf("%v", err)
		}
	})
	t.Run("missing file", func(t *testing.T) {
		_, err := load([]string{"ADIT_TOKEN_FILE=/nowhere/token"})
		if err == nil || !strings.Contains(err.Error(), "token-file (environment ADIT_TOKEN_FILE)") {
			t.Errorf("%v", err)
		}
	})
	t.Run("empty file", func(t *testing.T) {
		_, err := load([]string{"ADIT_TOKEN_FILE=" + write(t, "empty", "\n")})
		if err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("%v", err)
		}
	})
}

func TestAliases(t *testing.T) {
	tokenFile := write(t, "token", "from-file")
	for _, c := range []struct {
		env           []string
		setting, want string
		warning       string
	}{
		{[]string{"HLE_AGENT_TOKEN=hle"}, "token", "hle", "HLE_AGENT_TOKEN is accepted; its name here is ADIT_TOKEN"},
		{[]string{"TOWONEL_INVITE_TOKEN=tow"}, "token", "tow", "TOWONEL_INVITE_TOKEN is accepted; its name here is ADIT_TOKEN"},
		{[]string{"TOWONEL_INVITE_TOKEN_FILE=" + tokenFile}, "token", "from-file", "TOWONEL_INVITE_TOKEN_FILE is accepted; its name here is ADIT_TOKEN_FILE"},
		{[]string{"HLE_SERVER_URL=https://hub.example.com"}, "server-url", "https://hub.example.com", "ADIT_SERVER_URL"},
		{[]string{"TOWONEL_AGENT_SERVICES=[]"}, "services", "[]", "ADIT_AGENT_SERVICES"},
		{[]string{"TOWONEL_AGENT_TCP_SERVICES=[]"}, "tcp-services", "[]", "ADIT_AGENT_TCP_SERVICES"},
		{[]string{"TOWONEL_AGENT_UDP_SERVICES=[]"}, "udp-services", "[]", "ADIT_AGENT_UDP_SERVICES"},
		{[]string{"TOWONEL_DISABLE_UDP_GSO=true"}, "disable-udp-gso", "true", "ADIT_DISABLE_UDP_GSO"},
		{[]string{"TOWONEL_AGENT_HEALTH_LISTEN_ADDR=:9090"}, "health-addr", ":9090", "ADIT_HEALTH_ADDR"},
		{[]string{"TOWONEL_AGENT_RELAY_URL=turn:x"}, "token", "", "TOWONEL_AGENT_RELAY_URL is set, but this version has no such feature"},
		// The setting's own name wins, without a word.
		{[]string{"ADIT_TOKEN=own", "HLE_AGENT_TOKEN=hle"}, "token", "own", ""},
		{[]string{"ADIT_TOKEN_FILE=" + tokenFile, "HLE_AGENT_TOKEN=hle"}, "token", "from-file", ""},
	} {
		t.Run(c.env[len(c.env)-1], func(t *testing.T) {
			v, err := config.Load(config.Sources{Program: config.ForAgent, Environ: c.env})
			if err != nil {
				t.Fatal(err)
			}
			got := line(t, v, c.setting).Value
			if c.setting == "token" {
				got = v.Secret("token")
			}
			if got != c.want {
				t.Errorf("%s = %q, want %q", c.setting, got, c.want)
			}
			if all := strings.Join(v.Warnings, "\n"); c.warning == "" && all != "" || !strings.Contains(all, c.warning) || len(v.Warnings) > 1 {
				t.Errorf("warnings %q, want one with %q", v.Warnings, c.warning)
			}
		})
	}
	t.Run("a server does not hear of an agent's aliases", func(t *testing.T) {
		v, err := config.Load(config.Sources{Program: config.ForServer, Environ: []string{"HLE_AGENT_TOKEN=x"}})
		if err != nil || len(v.Warnings) > 0 {
			t.Errorf("%v %q", err, v.Warnings)
		}
	})
}

// TestErrors: every error names field, where the value came from, the value and a remedy.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name      string
		p         config.Program
		args, env []string
		yaml      string
		want      []string
	}{
		{"address", config.ForServer, []string{"--listen-https", "8443"}, nil, "", []string{"listen-https (flag --listen-https)", `"8443"`, "host:port"}},
		{"port too large", config.ForServer, []string{"--listen-https", ":70000"}, nil, "", []string{"listen-https", "65535"}},
		{"duration", config.ForServer, nil, []string{"ADIT_DRAIN_TIMEOUT=25"}, "", []string{"drain-timeout (environment ADIT_DRAIN_TIMEOUT)", `"25"`, "25s"}},
		{"negative duration", config.ForServer, []string{"--idle-timeout", "-1s"}, nil, "", []string{"idle-timeout", `"-1s"`}},
		{"word", config.ForServer, []string{"--tls", "selfsigned"}, nil, "", []string{"tls", `"selfsigned"`, "internal, acme, files"}},
		{"words", config.ForAgent, []string{"--carriers", "quic,http"}, nil, "", []string{"carriers", `"http"`, "quic, tls, ws"}},
		{"word twice", config.ForAgent, []string{"--carriers", "tls,tls"}, nil, "", []string{"carriers", "named twice"}},
		{"bool", config.ForServer, nil, []string{"ADIT_PPROF=maybe"}, "", []string{"pprof", `"maybe"`, "true or false"}},
		{"count", config.ForServer, []string{"--max-connections", "many"}, nil, "", []string{"max-connections", `"many"`}},
		{"size", config.ForServer, []string{"--header-max-bytes", "64KB"}, nil, "", []string{"header-max-bytes", "64KiB"}},
		{"network", config.ForServer, []string{"--trusted-proxies", "10.0.0.0/33"}, nil, "", []string{"trusted-proxies", `"10.0.0.0/33"`}},
		{"ports", config.ForServer, []string{"--tcp-ports", "5000-4000"}, nil, "", []string{"tcp-ports", `"5000-4000"`}},
		{"port zero", config.ForServer, []string{"--udp-ports", "0-10"}, nil, "", []string{"udp-ports", `"0-10"`}},
		{"url", config.ForAgent, []string{"--server-url", "http://hub"}, nil, "", []string{"server-url", "https"}},
		{"json", config.ForAgent, []string{"--services", "{}"}, nil, "", []string{"services", "JSON list"}},
		{"unknown key", config.ForServer, nil, nil, "listen_htps: x\n", []string{"listen_htps", "is not a setting"}},
		{"nearly a key", config.ForServer, nil, nil, "listenhttps: x\n", []string{"did you mean listen-https?"}},
		{"key of another program", config.ForServer, nil, nil, "token: x\n", []string{"token", "not a setting of the server"}},
		{"key twice", config.ForServer, nil, nil, "tcp-ports: 2\ntcp_ports: 3\n", []string{"given twice"}},
		{"not YAML", config.ForServer, nil, nil, "[", []string{"config (", "YAML"}},
		{"mapping", config.ForServer, nil, nil, "region: {a: b}\n", []string{"region", "mapping"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := config.Sources{Program: c.p, Flags: flags(t, c.p, c.args...), Environ: c.env}
			if c.yaml != "" {
				src.File = write(t, "c.yaml", c.yaml)
			}
			_, err := config.Load(src)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		_, err := config.Load(config.Sources{Program: config.ForServer, Flags: flags(t, config.ForServer, "--tls", "x", "--pprof=false", "--region", "r", "--idle-timeout", "y")})
		if err == nil || !strings.Contains(err.Error(), "tls") || !strings.Contains(err.Error(), "idle-timeout") {
			t.Errorf("%v", err)
		}
	})
}

func server(t *testing.T, args ...string) (*config.Server, error) {
	t.Helper()
	v, err := config.Load(config.Sources{Program: config.ForServer, Flags: flags(t, config.ForServer, args...)})
	if err != nil {
		t.Fatal(err)
	}
	return v.Server()
}

func TestServerSettings(t *testing.T) {
	s, err := server(t, "--domain", "Example.COM.", "--data-dir", "/d")
	if err != nil {
		t.Fatal(err)
	}
	if s.Domain != "example.com" || s.HubHost != "hub.example.com" || s.TLS != "acme" || s.DatabaseURL != "sqlite:/d/adit.db" ||
		s.CertDir != "/d/certs" || s.SecretKeyFile != "/d/secret.key" || !s.AdminDefault || !s.Hub() || !s.Edge() {
		t.Errorf("%+v", s)
	}
	if s.DrainTimeout != 25*time.Second || s.HeaderMaxBytes != 64<<10 || s.MaxConnections != 15000 || len(s.TCPPorts) != 1 || !s.TCPPorts[0].Contains(1024) || s.TCPPorts[0].Contains(1023) {
		t.Errorf("%+v", s)
	}
	for domain, want := range map[string]string{"localhost": "internal", "home.arpa": "internal", "box.lan": "internal", "a.test": "internal", "example.org": "acme"} {
		if s, err := server(t, "--domain", domain); err != nil || s.TLS != want {
			t.Errorf("%s: %+v %v, want %s", domain, s, err, want)
		}
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no domain":          {nil, "domain: is required"},
		"bad domain":         {[]string{"--domain", "a_b.example"}, "domain"},
		"relay":              {[]string{"--domain", "example.com", "--roles", "hub,edge,relay"}, "relay"},
		"join without token": {[]string{"--roles", "edge", "--advertise", "e:443"}, "join: is required"},
		"no secret key":      {[]string{"--domain", "example.com", "--database-url", "postgres://u:p@h/d"}, "secret-key-file: is required with PostgreSQL"},
		"join with hub":      {[]string{"--domain", "example.com", "--join", "x"}, "roles include hub"},
		"no advertise":       {[]string{"--roles", "edge", "--join", "x"}, "advertise: is required"},
		"bad advertise":      {[]string{"--domain", "example.com", "--advertise", "edge1"}, "advertise"},
		"acme without edge":  {[]string{"--domain", "example.com", "--roles", "hub", "--tls", "acme"}, "acme needs the edge role"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := server(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAgentLists(t *testing.T) {
	file := write(t, "agent.yaml", "token: x\nservices:\n  - hostname: a.example.com\n    origin: 127.0.0.1:443\ntcp_services: []\n")
	v, err := config.Load(config.Sources{Program: config.ForAgent, File: file, Environ: []string{"ADIT_AGENT_UDP_SERVICES=[]"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := v.Agent()
	if err != nil {
		t.Fatal(err)
	}
	// Lists of the file are the agent's to read, again and again.
	if a.Lists != (config.ServiceLists{UDP: "[]"}) || a.ConfigFile != file {
		t.Errorf("%+v, %q", a.Lists, a.ConfigFile)
	}
	if !slices.Equal(a.Carriers, []string{"quic", "tls", "ws"}) {
		t.Errorf("carriers %q", a.Carriers)
	}
	if _, err := (func() (*config.Agent, error) {
		v, err := config.Load(config.Sources{Program: config.ForAgent})
		if err != nil {
			return nil, err
		}
		return v.Agent()
	})(); err == nil || !strings.Contains(err.Error(), "ADIT_TOKEN_FILE") {
		t.Errorf("no token: %v", err)
	}
}

// TestTable: names are promises, so the table keeps its own rules.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range []config.Program{config.ForServer, config.ForAgent, config.ForClient} {
		for _, s := range config.Settings(p) {
			if s.Help == "" || strings.ToLower(s.Name) != s.Name || strings.Contains(s.Name, "_") {
				t.Errorf("%s: %+v", s.Name, s)
			}
			if !strings.HasPrefix(s.Env(), "ADIT_") {
				t.Errorf("%s: environment %s", s.Name, s.Env())
			}
			seen[s.Env()] = true
		}
	}
	for _, want := range []string{"ADIT_TOKEN", "ADIT_SERVER_URL", "ADIT_API_KEY", "ADIT_DATA_DIR", "ADIT_AGENT_SERVICES", "ADIT_AGENT_TCP_SERVICES", "ADIT_AGENT_UDP_SERVICES", "ADIT_JOIN", "ADIT_CA_FILE"} {
		if !seen[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

func FuzzParsePorts(f *testing.F) {
	for _, s := range []string{"", "1", "1-2", "2-1", "65536", "a", "1-2-3", "0", " 5 , 6-7 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		rs, err := config.ParsePorts(s)
		if err != nil {
			return
		}
		for _, r := range rs {
			if r.First == 0 || r.Last < r.First {
				t.Fatalf("%q gave %v", s, r)
			}
			again, err := config.ParsePorts(r.String())
			if err != nil || len(again) != 1 || again[0] != r {
				t.Fatalf("%v does not read back: %v %v", r, again, err)
			}
		}
	})
}

func TestNetworksReachTheServer(t *testing.T) {
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	config.Bind(fs, config.ForServer)
	if err := fs.Parse([]string{"--domain", "localhost", "--proxy-protocol-from", "127.0.0.1/8,2001:db8::1", "--trusted-proxies", "10.1.2.3/8"}); err != nil {
		t.Fatal(err)
	}
	v, err := config.Load(config.Sources{Program: config.ForServer, Flags: fs})
	if err != nil {
		t.Fatal(err)
	}
	s, err := v.Server()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.ProxyProtocolFrom, s.TrustedProxies); got != "[127.0.0.0/8 2001:db8::1/128] [10.0.0.0/8]" {
		t.Errorf("got %s", got)
	}
}

func TestNoPorts(t *testing.T) {
	v, err := config.Load(config.Sources{Program: config.ForServer, Environ: []string{"ADIT_DOMAIN=example.com", "ADIT_TCP_PORTS="}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := v.Server()
	if err != nil || len(s.TCPPorts) != 0 || len(s.UDPPorts) != 1 {
		t.Errorf("an empty list must mean none, an absent one the default: %v, %v, %v", s.TCPPorts, s.UDPPorts, err)
	}
}

func TestSettingsToCome(t *testing.T) {
	v, err := config.Load(config.Sources{Program: config.ForAgent, Environ: []string{"ADIT_RELAY_URL=turn:relay.example.com", "ADIT_DIRECT_PORT=51820"}})
	if err != nil || len(v.Warnings) != 2 {
		t.Errorf("a value that is not used must be said: %q, %v", v.Warnings, err)
	}
}
