package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/discovery/docker"
	"github.com/adit-dev/adit/internal/discovery/host"
	"github.com/adit-dev/adit/internal/discovery/kubernetes"
	"github.com/adit-dev/adit/internal/kubeapi"
	"github.com/adit-dev/adit/internal/reach"
)

// around gives the agent what finds services and addresses around it. Nothing is looked at yet.
func around(cfg *agent.Config, s *config.Agent, log *slog.Logger) error {
	connect := sync.OnceValues(func() (*kubeapi.Client, error) { return kubeapi.InCluster(os.Getenv, "", log) })
	if err := providers(cfg, s, connect, log); err != nil {
		return err
	}
	r := reach.Config{Extra: s.ExtraLocalAddrs, Log: log}
	if s.KubernetesAddresses {
		mounted, _ := os.ReadFile(filepath.Join(kubeapi.AccountDir, "namespace"))
		r.Cluster = &reach.Cluster{
			Connect: connect, Node: os.Getenv("NODE_NAME"), Service: s.KubernetesService,
			Namespace: cmp.Or(s.KubernetesNamespace, os.Getenv("POD_NAMESPACE"), strings.TrimSpace(string(mounted))),
		}
	}
	var err error
	if cfg.Reach, err = reach.New(r); err != nil {
		return err
	}
	cfg.Origin.Node = cfg.Reach.Node
	return nil
}

// providers adds the sources of services that the settings name.
func providers(cfg *agent.Config, s *config.Agent, connect func() (*kubeapi.Client, error), log *slog.Logger) error {
	if slices.Contains(s.Discovery, "off") || len(s.Discovery) == 0 {
		if len(s.Discovery) > 1 {
			return fmt.Errorf("--discovery %s: off goes with nothing else", strings.Join(s.Discovery, ","))
		}
		return nil
	}
	ports, names, err := excludedPorts(s.DiscoveryExcludePorts)
	if err != nil {
		return err
	}
	for _, n := range s.ExcludeNamespaces {
		if !dnsLabel.MatchString(strings.ToLower(n)) {
			return fmt.Errorf("--discovery-exclude-namespaces %q: is no name of a namespace; use letters, digits and -", n)
		}
	}
	auto := slices.Contains(s.Discovery, "auto")
	if named := slices.Contains(s.Discovery, host.Name); auto || named {
		cfg.Providers = append(cfg.Providers, host.New(host.Config{ExcludePorts: ports, Wanted: named}))
	}
	if named := slices.Contains(s.Discovery, docker.Name); auto || named {
		cfg.Providers = append(cfg.Providers, docker.New(docker.Config{Socket: s.DockerSocket, Wanted: named, ExcludePorts: ports}))
	}
	if named := slices.Contains(s.Discovery, kubernetes.Name); auto || named {
		p := kubernetes.New(kubernetes.Config{
			Connect: connect, Wanted: named, ExcludeNamespaces: s.ExcludeNamespaces, IncludeSystem: s.IncludeSystem, IncludeHeadless: s.IncludeHeadless,
			ExcludePorts: ports, ExcludePortNames: names, Domain: s.ClusterDomain, Log: log,
		})
		cfg.Providers = append(cfg.Providers, p)
		cfg.Origin.Cluster = p
	}
	return nil
}

// dnsLabel is what names of namespaces and ports look like.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// excludedPorts reads ports, ranges first-last, and names of ports.
func excludedPorts(list []string) (out []uint16, names []string, err error) {
	for _, text := range list {
		if name := strings.ToLower(text); dnsLabel.MatchString(name) && strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") {
			names = append(names, name)
			continue
		}
		first, last, isRange := strings.Cut(text, "-")
		f, err1 := strconv.ParseUint(first, 10, 16)
		l, err2 := f, error(nil)
		if isRange {
			l, err2 = strconv.ParseUint(last, 10, 16)
		}
		if err1 != nil || err2 != nil || f == 0 || l < f {
			return nil, nil, fmt.Errorf("--discovery-exclude-ports %q: is not a port, a range first-last or the name of a port", text)
		}
		for p := f; p <= l; p++ {
			out = append(out, uint16(p))
		}
	}
	return out, names, nil
}
