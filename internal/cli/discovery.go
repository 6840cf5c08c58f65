package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/discovery"
	"github.com/adit-dev/adit/internal/discovery/docker"
	"github.com/adit-dev/adit/internal/discovery/host"
)

// providers are the sources of services that the settings name.
func providers(s *config.Agent) ([]discovery.Provider, error) {
	if slices.Contains(s.Discovery, "off") || len(s.Discovery) == 0 {
		if len(s.Discovery) > 1 {
			return nil, fmt.Errorf("--discovery %s: off goes with nothing else", strings.Join(s.Discovery, ","))
		}
		return nil, nil
	}
	ports, err := excludedPorts(s.DiscoveryExcludePorts)
	if err != nil {
		return nil, err
	}
	var out []discovery.Provider
	auto := slices.Contains(s.Discovery, "auto")
	if auto || slices.Contains(s.Discovery, host.Name) {
		out = append(out, host.New(host.Config{ExcludePorts: ports}))
	}
	if named := slices.Contains(s.Discovery, docker.Name); auto || named {
		out = append(out, docker.New(docker.Config{Socket: s.DockerSocket, Wanted: named, ExcludePorts: ports}))
	}
	return out, nil
}

func excludedPorts(list []string) (out []uint16, err error) {
	for _, text := range list {
		first, last, isRange := strings.Cut(text, "-")
		f, err1 := strconv.ParseUint(first, 10, 16)
		l, err2 := f, error(nil)
		if isRange {
			l, err2 = strconv.ParseUint(last, 10, 16)
		}
		if err1 != nil || err2 != nil || f == 0 || l < f {
			return nil, fmt.Errorf("--discovery-exclude-ports %q: is not a port or a range first-last", text)
		}
		for p := f; p <= l; p++ {
			out = append(out, uint16(p))
		}
	}
	return out, nil
}
