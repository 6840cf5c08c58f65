package agent

import (
	"context"
	"time"
)

// Status is what /readyz shows.
type Status struct {
	// Ready: at least one session.
	Ready    bool `json:"ready"`
	Draining bool `json:"draining,omitempty"`
	// Standby is who holds the enrolment while this process waits for it.
	Standby string `json:"standby,omitempty"`
	// ConfigProblem is why the configuration file is not in use as it is now.
	ConfigProblem string          `json:"config_problem,omitempty"`
	Hub           HubStatus       `json:"hub"`
	Sessions      []SessionStatus `json:"sessions"`
	Edges         []EdgeStatus    `json:"edges"`
	Services      []ServiceStatus `json:"services"`
	// Advertised are the addresses for direct paths; AdvertiseProblem is why those of the node are
	// not known.
	Advertised       []string `json:"advertised,omitempty"`
	AdvertiseProblem string   `json:"advertise_problem,omitempty"`
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
	// Problem is when and why the last dial failed; empty after a success.
	Problem string `json:"problem,omitempty"`
}

// SessionStatus is one session.
type SessionStatus struct {
	Edge      string    `json:"edge"`
	Carrier   string    `json:"carrier"`
	Path      string    `json:"path"`
	Remote    string    `json:"remote"`
	Since     time.Time `json:"since"`
	Draining  bool      `json:"draining,omitempty"`
	RTTMillis float64   `json:"rtt_ms"`
	Lanes     int       `json:"lanes"`
	Streams   int       `json:"streams"`
}

// ServiceStatus is one declared entry with the hub's verdict and the edges'.
type ServiceStatus struct {
	Key      string `json:"key"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Origin   string `json:"origin"`
	TunnelID string `json:"tunnel_id"`
	URL      string `json:"url,omitempty"`
	// Managed: the hub's, not of the agent's own lists.
	Managed bool `json:"managed,omitempty"`
	// Access is public or protected.
	Access string `json:"access"`
	// Verdict is ok, pending or a reason code; Detail has the remedy.
	Verdict string `json:"verdict"`
	Detail  string `json:"detail,omitempty"`
	// Problem is how the last dial of its origin failed; empty after a success.
	Problem string `json:"problem,omitempty"`
	// Edges is what each edge made of it, by edge id.
	Edges map[string]string `json:"edges,omitempty"`
}

// Status is the state now.
func (a *Agent) Status() Status {
	s := Status{Draining: a.draining.Load(), Sessions: []SessionStatus{}, Edges: []EdgeStatus{}, Services: []ServiceStatus{}}
	if p := a.reloadProblem.Load(); p != nil {
		s.ConfigProblem = *p
	}
	if r := a.cfg.Reach; r != nil {
		s.Advertised, s.AdvertiseProblem = r.List(), r.Problem()
	}
	if m := a.current.Load(); m != nil {
		m.status(&s)
	}
	return s
}

// touch notes that Status changed. It never blocks, so it may be called from anywhere.
func (a *Agent) touch() { wake(a.dirty) }

// notify tells whoever asked about changes of Status.
func (a *Agent) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.dirty:
			if a.cfg.OnStatus != nil {
				a.cfg.OnStatus(a.Status())
			}
		}
	}
}
