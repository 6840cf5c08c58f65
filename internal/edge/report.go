package edge

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

const (
	// settle is how long a change may bring others with it before it is reported.
	settle = 100 * time.Millisecond
	// reportTimeout bounds one report: the next one says everything again.
	reportTimeout = 10 * time.Second
)

// report tells the hub what this edge sees: at once on a change, else every interval.
func (e *Edge) report(ctx context.Context) {
	t := time.NewTicker(e.cfg.ReportInterval)
	defer t.Stop()
	for {
		e.sendReport(ctx)
		select {
		case <-t.C:
		case <-e.reportNow:
			if !sleep(ctx, settle) {
				return
			}
			// What came meanwhile is in this report.
			select {
			case <-e.reportNow:
			default:
			}
		case <-ctx.Done():
			return
		}
	}
}

func (e *Edge) sendReport(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	r := e.state()
	table := e.view.Load().table
	r.Traffic = e.traffic.reports(func(id string) bool { return table.Get(id) != nil })
	err := e.cfg.Feed.Report(ctx, r)
	switch {
	case err == nil:
		e.traffic.confirmed()
		if e.feed.watching.Load() {
			e.setConnected(true)
		}
	case ctx.Err() == nil:
		e.cfg.Log.Debug("the hub took no report", "err", err)
	}
}

// state is a full report.
func (e *Edge) state() *hubv1.ReportRequest {
	v := e.view.Load()
	r := &hubv1.ReportRequest{
		SentAt: timestamppb.New(e.cfg.Now()), Ports: e.ports.reports(), Revision: e.view.Load().revision,
		Edge: e.cfg.Address, Software: e.cfg.Software, Draining: e.draining.Load(), StartedAt: timestamppb.New(e.enrol.started),
	}
	for _, rep := range e.acceptor.Replicas() {
		ids := e.registry.wanted(rep)
		for _, s := range rep.Sessions() {
			r.Sessions = append(r.Sessions, &hubv1.SessionReport{
				TokenId: v.owner(rep.TokenID()), ReplicaId: rep.ID(), HostName: rep.HostName(), Software: rep.Software(),
				RemoteAddress: s.Remote.String(), Carrier: s.Carrier, Path: s.Path, Since: timestamppb.New(s.Since),
				Streams: uint64(s.Streams), Lanes: uint32(s.Lanes), Draining: s.Draining,
				RttMicros: uint64(s.RTT.Microseconds()), TunnelIds: ids,
			})
		}
	}
	return r
}
