package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// edgeView is one edge as commands print it.
type edgeView struct {
	ID        string     `json:"id"`
	Addresses []string   `json:"addresses"`
	Region    string     `json:"region"`
	State     string     `json:"state"`
	LastSeen  *time.Time `json:"last_seen"`
	Revision  uint64     `json:"revision"`
	Sessions  uint32     `json:"sessions"`
	Software  string     `json:"software"`
	TokenID   string     `json:"token_id"`
	Draining  bool       `json:"draining"`
	// OutOfService: taken out by edge drain.
	OutOfService bool `json:"out_of_service"`
}

func edgeOf(s *hubv1.EdgeStatus) edgeView {
	addr := s.GetEdge().GetAddress()
	return edgeView{ID: addr.GetId(), Addresses: list(addr.GetAddresses()), Region: addr.GetRegion(), State: s.GetState(),
		LastSeen: when(s.GetLastSeen()), Revision: s.GetRevision(), Sessions: s.GetSessions(), Software: s.GetSoftware(),
		TokenID: s.GetTokenId(), Draining: s.GetEdge().GetDraining(), OutOfService: s.GetEdge().GetOutOfService()}
}

func (a *app) edgeCommand() *cobra.Command {
	c := &cobra.Command{Use: "edge", Short: "Edges of this hub, and tokens for further ones"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List edges", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []edgeView{}
			err := pages(func(token string) (string, error) {
				resp, err := c.edges().ListEdges(ctx, &hubv1.ListEdgesRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, e := range resp.GetEdges() {
					all = append(all, edgeOf(e))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, e := range all {
					state := e.State
					if e.Draining {
						state += ", draining"
					}
					if e.OutOfService {
						state += ", out of service"
					}
					rows = append(rows, []string{e.ID, strings.Join(e.Addresses, ","), e.Region, state, strconv.Itoa(int(e.Sessions)),
						strconv.FormatUint(e.Revision, 10), showTime(e.LastSeen), e.Software})
				}
				return a.table([]string{"ID", "ADDRESSES", "REGION", "STATE", "SESSIONS", "REVISION", "LAST SEEN", "VERSION"}, rows)
			})
		}),
	}, a.edgeInvite(), a.edgeInvites(), a.edgeRevoke(), a.edgeDrain(), a.edgeRemove())
	return c
}

func (a *app) edgeInvite() *cobra.Command {
	var req hubv1.InviteEdgeRequest
	var expires string
	c := &cobra.Command{
		Use: "invite", Short: "Make a token with which further edges join; it is shown once", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.edges().InviteEdge(ctx, &req)
			if err != nil {
				return err
			}
			v := struct {
				ID    string `json:"id"`
				Name  string `json:"name"`
				Token string `json:"token"`
			}{resp.GetId(), req.GetName(), resp.GetToken()}
			return a.print(v, func() error {
				if a.quiet {
					_, err := fmt.Fprintln(a.Stdout, v.Token)
					return err
				}
				_, err := fmt.Fprintf(a.Stdout, "%s\n\nThe token is shown only now. Put it into a file on the edge's host, then:\n\n  ADIT_JOIN_FILE=FILE adit server --roles edge --advertise HOST:443\n", v.Token)
				return err
			})
		}),
	}
	f := c.Flags()
	f.StringVar(&req.Name, "name", "", "name of the token (default a new one)")
	f.Uint32Var(&req.MaxEdges, "max-edges", 0, "most edges that may join with it; 0 = any number")
	f.StringVar(&expires, "expires", "", "when no further edge may join: a duration (72h, 30d) or a time (RFC 3339)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if req.Name == "" {
			b := make([]byte, 4)
			_, _ = rand.Read(b)
			req.Name = "edge-" + hex.EncodeToString(b)
		}
		if expires != "" {
			t, err := parseWhen(expires, time.Now())
			if err != nil {
				return usageErrorf("--expires: %w", err)
			}
			req.ExpiresAt = timestamppb.New(t)
		}
		return nil
	}
	return c
}
