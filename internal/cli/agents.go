package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// agentView is one agent as commands print it: everything that runs with one token.
type agentView struct {
	TokenID  string        `json:"token_id"`
	Name     string        `json:"name"`
	Tenant   string        `json:"tenant"`
	State    string        `json:"state"`
	Replicas []replicaView `json:"replicas"`
	// Kind is invite, or agent: enrolled.
	Kind           string     `json:"kind"`
	CreatedAt      *time.Time `json:"created_at"`
	LastSeenAt     *time.Time `json:"last_seen_at"`
	ManagedTunnels uint32     `json:"managed_tunnels"`
	// Holder is the replica that holds the enrolment, HolderHost where it runs.
	Holder      string     `json:"holder_replica,omitempty"`
	HolderHost  string     `json:"holder_host,omitempty"`
	HolderSince *time.Time `json:"holder_since,omitempty"`
	// OldTokenExpiresAt is when a token that was rotated out ends.
	OldTokenExpiresAt *time.Time `json:"old_token_expires_at,omitempty"`
	// Token is shown once, by create and rotate.
	Token string `json:"token,omitempty"`
}

type replicaView struct {
	ID       string        `json:"id"`
	State    string        `json:"state"`
	HostName string        `json:"host_name"`
	Software string        `json:"software"`
	LastSeen *time.Time    `json:"last_seen"`
	Sessions []sessionView `json:"sessions"`
	Services []serviceView `json:"services"`
	// Capabilities are what the replica can do, Advertised where it can be dialled.
	Capabilities []string `json:"capabilities"`
	Advertised   []string `json:"advertised"`
}

type sessionView struct {
	Edge          string     `json:"edge"`
	Carrier       string     `json:"carrier"`
	Path          string     `json:"path"`
	RemoteAddress string     `json:"remote_address"`
	Since         *time.Time `json:"since"`
	Streams       uint64     `json:"streams"`
	Lanes         uint32     `json:"lanes"`
	RTTMicros     uint64     `json:"rtt_micros"`
	Draining      bool       `json:"draining"`
}

// serviceView is one declared entry with the hub's verdict.
type serviceView struct {
	Key      string `json:"key"`
	TunnelID string `json:"tunnel_id"`
	URL      string `json:"url"`
	Verdict  string `json:"verdict"`
	Detail   string `json:"detail"`
}

func agentOf(g *hubv1.Agent) agentView {
	v := agentView{TokenID: g.GetTokenId(), Name: g.GetName(), Tenant: g.GetTenant(), State: g.GetState(), Replicas: []replicaView{},
		Kind: g.GetKind(), CreatedAt: when(g.GetCreatedAt()), LastSeenAt: when(g.GetLastSeenAt()), ManagedTunnels: g.GetManagedTunnels(),
		Holder: g.GetHolderReplica(), HolderHost: g.GetHolderHost(), HolderSince: when(g.GetHolderSince()), OldTokenExpiresAt: when(g.GetOldTokenExpiresAt())}
	for _, r := range g.GetReplicas() {
		rv := replicaView{ID: r.GetId(), State: r.GetState(), HostName: r.GetHostName(), Software: r.GetSoftware(), LastSeen: when(r.GetLastSeen()),
			Sessions: []sessionView{}, Services: []serviceView{},
			Capabilities: append([]string{}, r.GetCapabilities()...), Advertised: append([]string{}, r.GetAdvertised()...)}
		for _, s := range r.GetSessions() {
			rv.Sessions = append(rv.Sessions, sessionView{Edge: s.GetEdgeId(), Carrier: s.GetCarrier(), Path: s.GetPath(), RemoteAddress: s.GetRemoteAddress(),
				Since: when(s.GetSince()), Streams: s.GetStreams(), Lanes: s.GetLanes(), RTTMicros: s.GetRttMicros(), Draining: s.GetDraining()})
		}
		for _, d := range r.GetVerdicts() {
			rv.Services = append(rv.Services, serviceView{Key: d.GetKey(), TunnelID: d.GetTunnelId(), URL: d.GetUrl(), Verdict: d.GetCode(), Detail: d.GetDetail()})
		}
		v.Replicas = append(v.Replicas, rv)
	}
	return v
}

func (g agentView) sessions() (n int, carriers string) {
	seen := map[string]int{}
	var names []string
	for _, r := range g.Replicas {
		for _, s := range r.Sessions {
			n++
			if seen[s.Carrier]++; seen[s.Carrier] == 1 {
				names = append(names, s.Carrier)
			}
		}
	}
	return n, strings.Join(names, ",")
}

// online are the replicas that run: one that ended is shown for a while, but not counted.
func (g agentView) online() (out []replicaView) {
	for _, r := range g.Replicas {
		if r.State == "online" {
			out = append(out, r)
		}
	}
	return out
}

func (g agentView) refused() int {
	n := 0
	for _, r := range g.online() {
		for _, s := range r.Services {
			if s.Verdict != "ok" {
				n++
			}
		}
	}
	return n
}

func (a *app) agentsCommand() *cobra.Command {
	c := &cobra.Command{Use: "agents", Short: "Running agents, their sessions and services"}
	c.AddCommand(a.servicesCommand(), &cobra.Command{
		Use: "list", Short: "List agents", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []agentView{}
			err := pages(func(token string) (string, error) {
				resp, err := c.agents().ListAgents(ctx, &hubv1.ListAgentsRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, g := range resp.GetAgents() {
					all = append(all, agentOf(g))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, g := range all {
					n, carriers := g.sessions()
					problems := ""
					if r := g.refused(); r > 0 {
						problems = strconv.Itoa(r) + " refused"
					}
					rows = append(rows, []string{g.Name, g.Tenant, g.State, strconv.Itoa(len(g.online())), strconv.Itoa(n), carriers, problems})
				}
				return a.table([]string{"NAME", "TENANT", "STATE", "REPLICAS", "SESSIONS", "CARRIER", "PROBLEMS"}, rows)
			})
		}),
	}, &cobra.Command{
		Use: "get NAME|ID", Short: "Show one agent with the verdict on each of its services", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.agents().GetAgent(ctx, &hubv1.GetAgentRequest{Id: args[0]})
			if err != nil {
				return err
			}
			g := agentOf(resp.GetAgent())
			return a.print(g, func() error { return a.printAgent(g) })
		}),
	}, a.agentsCreate(), a.agentsDelete(), a.agentsRotate(),
		a.agentsEnable("disable", "Switch an enrolled agent off: its sessions end within seconds", "switched off", false),
		a.agentsEnable("enable", "Switch an enrolled agent on again", "switched on", true), a.agentsDrain())
	return c
}

func (a *app) printAgent(g agentView) error {
	holder, tunnels := "", ""
	if g.HolderHost != "" {
		holder = fmt.Sprintf("%s on %s since %s", short(g.Holder), g.HolderHost, showTime(g.HolderSince))
	}
	if g.Kind == "agent" {
		tunnels = strconv.Itoa(int(g.ManagedTunnels))
	}
	if err := a.fields("name", g.Name, "kind", g.Kind, "tenant", g.Tenant, "state", g.State, "token", g.TokenID, "held by", holder,
		"managed tunnels", tunnels, "old token ends", showTime(g.OldTokenExpiresAt)); err != nil {
		return err
	}
	for _, r := range g.Replicas {
		fmt.Fprintf(a.Stdout, "\nreplica %s on %s (%s), %s, last seen %s\n", short(r.ID), r.HostName, r.Software, r.State, showTime(r.LastSeen))
		if len(r.Capabilities) > 0 {
			fmt.Fprintf(a.Stdout, "  can      %s\n", strings.Join(r.Capabilities, ", "))
		}
		if len(r.Advertised) > 0 {
			fmt.Fprintf(a.Stdout, "  reached  at %s\n", strings.Join(r.Advertised, ", "))
		}
		for _, s := range r.Sessions {
			drain := ""
			if s.Draining {
				drain = ", draining"
			}
			fmt.Fprintf(a.Stdout, "  session  %s %s from %s at edge %s, %d streams, %d lanes%s\n", s.Carrier, s.Path, s.RemoteAddress, s.Edge, s.Streams, s.Lanes, drain)
		}
		for _, s := range r.Services {
			line := strings.TrimSpace(s.Verdict + " " + s.URL)
			if s.Detail != "" {
				line += ": " + s.Detail
			}
			fmt.Fprintf(a.Stdout, "  %s  %s\n", s.Key, line)
		}
	}
	return nil
}

// short is enough of an id to tell two apart.
func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
