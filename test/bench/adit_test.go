//go:build bench && linux

package bench

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

const (
	passthroughHost = "pass.localhost"
	// remoteDomain is the base domain where the agent is in another namespace: names below
	// localhost would lead back to itself.
	remoteDomain = "bench.example"
)

// policies are the carrier policies that tunnels are measured with.
var policies = []string{"throughput", "latency", "auto"}

// rawPolicy is for passthrough only, on loopback.
const rawPolicy = "raw"

// adit starts a server and an agent whose tunnels all use one carrier policy. Further targets are
// the passthrough tunnel of the same processes, and with auto their http tunnel in clear text.
func adit(t *testing.T, s site, o origin, policy string, agentArgs ...string) []*target {
	t.Helper()
	cfg := stack.ServerConfig{Args: []string{"--log-level", "warn", "--max-connections-per-address", "14000"}}
	agent := stack.AgentConfig{Args: append([]string{"--log-level", "warn"}, agentArgs...), Wrap: s.wrap, Unready: s.remote()}
	if s.remote() {
		// On every address: the commands of the CLI come over loopback.
		port := freeport.One(t)
		cfg.HTTPS, cfg.Domain = net.JoinHostPort("0.0.0.0", strconv.Itoa(port)), remoteDomain
		cfg.Args = append(cfg.Args, "--advertise", s.at(port))
		// The name of the hub has no resolver there.
		agent.Args = append(agent.Args, "--server-url", "https://"+s.at(port))
	}
	if *profiles != "" {
		cfg.Args, agent.Args = append(cfg.Args, "--pprof"), append(agent.Args, "--pprof")
	}
	server := stack.StartServer(t, cfg)
	tcp, udp, plain := freeport.One(t), freeport.One(t), freeport.One(t)
	grants := []string{"--tcp-port", strconv.Itoa(tcp), "--tcp-port", strconv.Itoa(plain), "--udp-port", strconv.Itoa(udp)}
	labels := []string{fmt.Sprintf("tcp:%d", tcp), fmt.Sprintf("udp:%d", udp)}
	others := policy
	if policy == rawPolicy {
		others = "auto"
	}
	with := func(e stack.Service) stack.Service { return e.With("carrier_policy", others) }
	agent.TCP = []stack.Service{with(stack.Port("tcp", tcp, o.tcp))}
	agent.UDP = []stack.Service{stack.Port("udp", udp, o.udp)}
	main := &target{name: "adit " + policy, tcp: s.at(tcp), udp: s.at(udp)}
	targets := []*target{main}
	if policy == rawPolicy {
		targets = nil
	}
	if !s.remote() {
		grants = append(grants, "--hostname", host, "--hostname", passthroughHost)
		labels = append(labels, host, passthroughHost)
		agent.Services = []stack.Service{with(stack.HTTP(host, "http://"+o.http)).With("http_ports", []int{plain}), stack.Passthrough(passthroughHost, o.tcp).With("carrier_policy", policy)}
		main.http, main.tls = server.HTTPS, &tls.Config{RootCAs: server.Roots(), NextProtos: []string{"http/1.1"}}
		if name := report.Clear; policy == "auto" && wanted(t, name) {
			targets = append(targets, &target{name: name, http: s.at(plain)})
		}
		if name := main.name + " passthrough"; wanted(t, name) {
			targets = append(targets, &target{name: name, tcp: server.HTTPS, hello: load.ClientHello(passthroughHost)})
		}
	}
	a := stack.StartAgent(t, server.Invite("bench-"+policy, grants...).File, agent)
	server.WaitOnline(1, labels...)
	for _, g := range targets {
		g.edge, g.agent = server.Process, a.Process
		g.admin = map[string]string{"edge": server.Admin, "agent": a.Health}
		if g.tcp == "" {
			continue
		}
		if r := load.Echo(t.Context(), g.dialTCP(), 1, 128, 50*time.Millisecond, false); r.Failed > 0 {
			t.Fatalf("%s: %s", g.name, r.FirstErr)
		}
	}
	return targets
}
