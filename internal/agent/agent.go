// Package agent is the runtime of an agent: it declares its services at the hub, keeps a session
// with every edge, and dials origins on behalf of edges.
package agent

import (
	"context"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
)

// Config is everything an agent can be told.
type Config struct {
	// Token is the token itself; TokenFile a file that holds it and is re-read when it changes.
	// One of them is required.
	Token     string
	TokenFile string
	// ServerURL overrides the hub URL of the token; its pins stay.
	ServerURL string
	// Services are the lists from flags and environment; lists not set there come from ConfigFile
	// (YAML, re-read when it changes).
	Services   config.ServiceLists
	ConfigFile string
	// HealthAddr serves /healthz, /readyz and /metrics; empty = off, port 0 = any free one.
	HealthAddr string
	// StateDir keeps the edge list for a start without the hub; empty = none.
	StateDir string
	// Carriers in order of preference; empty = quic, tls, ws.
	Carriers []string
	// MaxLanes caps lanes per edge; 0 = default.
	MaxLanes int
	// Origin says which targets may be dialled and how.
	Origin origin.Config
	// OriginCAFile holds PEM roots trusted for https and tls origins beside the system's.
	OriginCAFile string
	// GracePeriod is how long running streams may take to end (25 s).
	GracePeriod time.Duration
	// FailFast ends Run with an error if the hub refuses any entry.
	FailFast bool
	// HostName is shown at the hub; empty = the machine's.
	HostName string
	// Software is this build's version.
	Software string
	// Proxy for the carriers tls and ws; nil = HTTPS_PROXY of the environment.
	Proxy func(target *url.URL) (*url.URL, error)
	// OnStatus is called after changes of Status, from one goroutine; nil = none.
	OnStatus func(Status)
	Log      *slog.Logger
	// Registry gets the metrics and is served at /metrics; nil = a new one.
	Registry *prometheus.Registry
}

// Status is what /readyz shows.
type Status struct {
	// Ready: at least one session.
	Ready    bool            `json:"ready"`
	Draining bool            `json:"draining,omitempty"`
	Hub      HubStatus       `json:"hub"`
	Sessions []SessionStatus `json:"sessions"`
	Edges    []EdgeStatus    `json:"edges"`
	Services []ServiceStatus `json:"services"`
}

// HubStatus is the state of the link to the hub.
type HubStatus struct {
	URL       string `json:"url"`
	Connected bool   `json:"connected"`
	// Problem is why not, in words.
	Problem string `json:"problem,omitempty"`
}

// EdgeStatus is one edge the agent knows.
type EdgeStatus struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Sessions  int      `json:"sessions"`
	Problem   string   `json:"problem,omitempty"`
}

// SessionStatus is one session.
type SessionStatus struct {
	Edge string `json:"edge"`
	link.SessionInfo
}

// ServiceStatus is one declared entry with the hub's verdict and the edges'.
type ServiceStatus struct {
	Key      string `json:"key"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Origin   string `json:"origin"`
	TunnelID string `json:"tunnel_id"`
	URL      string `json:"url,omitempty"`
	// Verdict is ok, pending or a reason code; Detail has the remedy.
	Verdict string `json:"verdict"`
	Detail  string `json:"detail,omitempty"`
	// Edges is what each edge made of it, by edge id.
	Edges map[string]string `json:"edges,omitempty"`
}

// Agent is one running agent.
type Agent struct{ cfg Config }

// New checks cfg: token, lists, patterns, files. Nothing is dialled or bound yet.
func New(cfg Config) (*Agent, error) { return &Agent{cfg: cfg}, nil }

// Run serves until ctx ends, then drains: announces it, lets running streams finish within the
// grace period, and returns nil. It returns early with an error when the agent cannot work.
func (a *Agent) Run(ctx context.Context) error { panic("unbuilt") }

// Force ends a drain at once.
func (a *Agent) Force() { panic("unbuilt") }

// Status is the state now.
func (a *Agent) Status() Status { panic("unbuilt") }

// HealthAddr is the bound health address once Run serves it, else empty.
func (a *Agent) HealthAddr() string { panic("unbuilt") }
