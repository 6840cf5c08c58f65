package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
)

func TestExcludedPorts(t *testing.T) {
	for text, want := range map[string]string{
		"metrics,telemetry,health,probe": "[] [metrics telemetry health probe]",
		"9000,20000-20002,Metrics":       "[9000 20000 20001 20002] [metrics]",
		"65535":                          "[65535] []",
		"http-web,8080-web":              "[] [http-web 8080-web]",
		"0":                              `!"0"`,
		"5-4":                            `!"5-4"`,
		"65536":                          `!"65536"`,
		"-metrics":                       `!"-metrics"`,
		"a b":                            `!"a b"`,
		"9000-":                          `!"9000-"`,
	} {
		ports, names, err := excludedPorts(strings.Split(text, ","))
		if problem, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), "--discovery-exclude-ports "+problem) {
				t.Errorf("%s: %v %v %v, want an error of %s", text, ports, names, err, problem)
			}
			continue
		}
		if got := fmt.Sprint(ports, " ", names); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestAround(t *testing.T) {
	for _, c := range []struct {
		name      string
		settings  config.Agent
		providers string
		problem   string
	}{
		{"off", config.Agent{Discovery: []string{"off"}}, "", ""},
		{"auto", config.Agent{Discovery: []string{"auto"}}, "host docker kubernetes", ""},
		{"one", config.Agent{Discovery: []string{"kubernetes"}}, "kubernetes", ""},
		{"off and more", config.Agent{Discovery: []string{"off", "host"}}, "", "off goes with nothing else"},
		{"a namespace that cannot be", config.Agent{Discovery: []string{"auto"}, ExcludeNamespaces: []string{"a_b"}}, "", `--discovery-exclude-namespaces "a_b"`},
		{"an address that cannot be", config.Agent{Discovery: []string{"off"}, ExtraLocalAddrs: []string{"x"}}, "", `--extra-local-addrs: entry 1, "x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cfg agent.Config
			err := around(&cfg, &c.settings, nil)
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Fatalf("%v, want %q", err, c.problem)
			}
			var names []string
			for _, p := range cfg.Providers {
				names = append(names, p.Name())
			}
			if got := strings.Join(names, " "); err == nil && got != c.providers {
				t.Errorf("%s, want %s", got, c.providers)
			}
			if err == nil && (cfg.Origin.Cluster != nil) != strings.Contains(c.providers, "kubernetes") {
				t.Error("the target guard knows of the cluster without discovery, or does not with it")
			}
		})
	}
}
