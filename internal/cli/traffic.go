package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// trafficPoint is what passed in one step of time, as commands print it.
type trafficPoint struct {
	At          time.Time         `json:"at"`
	Requests    uint64            `json:"requests"`
	Connections uint64            `json:"connections"`
	BytesIn     uint64            `json:"bytes_in"`
	BytesOut    uint64            `json:"bytes_out"`
	Errors      map[string]uint64 `json:"errors"`
	P50         float64           `json:"p50_ms"`
	P90         float64           `json:"p90_ms"`
	P99         float64           `json:"p99_ms"`
	Dropped     uint64            `json:"dropped"`
}

func trafficView(p *hubv1.TrafficPoint) trafficPoint {
	return trafficPoint{At: p.GetAt().AsTime(), Requests: p.GetRequests(), Connections: p.GetConnections(), BytesIn: p.GetBytesIn(), BytesOut: p.GetBytesOut(),
		Errors: p.GetErrors(), P50: p.GetP50Ms(), P90: p.GetP90Ms(), P99: p.GetP99Ms(), Dropped: p.GetDropped()}
}

func (p trafficPoint) row(at string) []string {
	var errors uint64
	for _, n := range p.Errors {
		errors += n
	}
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	ms := func(f float64) string {
		if f == 0 {
			return ""
		}
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return []string{at, count(p.Requests), count(p.Connections), sizeText(p.BytesIn), sizeText(p.BytesOut), count(errors), ms(p.P50), ms(p.P99)}
}

// sizeText is a number of bytes for people.
func sizeText(n uint64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

func (a *app) trafficCommand() *cobra.Command {
	var since, step time.Duration
	c := &cobra.Command{
		Use: "traffic [LABEL]", Short: "Requests, bytes, latency and errors of a tunnel, or of all", Args: cobra.MaximumNArgs(1),
		Long: `Prints what passed a tunnel (LABEL is a label, hostname, tcp:PORT or udp:PORT), or all tunnels
together: minutes are kept for 2 days, hours for 30 days, days for 400 days.`,
	}
	c.Flags().DurationVar(&since, "since", time.Hour, "how far back, as 24h")
	c.Flags().DurationVar(&step, "step", 0, "1m, 1h or 24h (default: what gives at most 200 lines)")
	c.RunE = a.call(func(ctx context.Context, c *client, args []string) error {
		r := &hubv1.GetTrafficRequest{Since: timestamppb.New(time.Now().Add(-since)), StepSeconds: uint32(step / time.Second)}
		if len(args) > 0 {
			r.Label = args[0]
		}
		resp, err := c.traffic().GetTraffic(ctx, r)
		if err != nil {
			return err
		}
		v := struct {
			Step   string         `json:"step"`
			Points []trafficPoint `json:"points"`
			Total  trafficPoint   `json:"total"`
		}{(time.Duration(resp.GetStepSeconds()) * time.Second).String(), []trafficPoint{}, trafficView(resp.GetTotal())}
		for _, p := range resp.GetPoints() {
			v.Points = append(v.Points, trafficView(p))
		}
		return a.print(v, func() error {
			var rows [][]string
			for _, p := range v.Points {
				if p.Requests+p.Connections+p.BytesIn+p.BytesOut > 0 || len(p.Errors) > 0 {
					rows = append(rows, p.row(p.At.Local().Format(time.DateTime)))
				}
			}
			rows = append(rows, v.Total.row("total"))
			return a.table([]string{"AT", "REQUESTS", "CONNECTIONS", "IN", "OUT", "ERRORS", "P50 MS", "P99 MS"}, rows)
		})
	})
	return c
}
