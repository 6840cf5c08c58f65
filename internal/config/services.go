package config

import (
	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// ServiceLists are an agent's three lists as JSON text, from a flag or the environment. An empty
// string means that the list is not set there.
type ServiceLists struct {
	Services string
	TCP      string
	UDP      string
}

// Services is what an agent declares, in the order of its lists. Each entry's Key is its place,
// e.g. "tcp_services[0]", and its Origin is complete, so the agent dials by it as well.
type Services []*hubv1.DeclaredTunnel

// ParseServices reads the lists. A list in set wins over the same list of file, the content of
// the YAML configuration file (nil = none); other keys of file are ignored here. The error names
// the list, the entry, the field, the value and the remedy of every problem.
func ParseServices(set ServiceLists, file []byte) (Services, error) { panic("unbuilt") }
