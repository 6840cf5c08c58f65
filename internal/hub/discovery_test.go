package hub

import (
	"fmt"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

func service(port int, name string) *hubv1.DiscoveredService {
	return &hubv1.DiscoveredService{Id: fmt.Sprintf("host//localhost/%d/tcp", port), Provider: "host", Name: name, Port: uint32(port), Origin: fmt.Sprintf("http://127.0.0.1:%d", port)}
}

func (h *testHub) services(r *hubv1.ListServicesRequest) (string, *hubv1.ListServicesResponse) {
	h.t.Helper()
	resp, err := h.ListServices(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, s := range resp.GetServices() {
		t := s.GetName()
		if n := len(s.GetExposedBy()); n > 0 {
			t += fmt.Sprintf("(%d)", n)
		}
		out = append(out, t)
	}
	return strings.Join(out, " "), resp
}

func TestDiscovery(t *testing.T) {
	h := newTestHub(t)
	a := h.replica(h.invite_("site", "*.example.com"))
	say := func(r *replica, d *hubv1.DiscoveryReport) error {
		return h.Report(t.Context(), r.caller, &hubv1.ReportRequest{Discovery: d})
	}
	want := func(text string) {
		t.Helper()
		if got, _ := h.services(&hubv1.ListServicesRequest{Id: "site"}); got != text {
			t.Errorf("services %q, want %q", got, text)
		}
	}
	_, never := h.services(&hubv1.ListServicesRequest{Id: "site"})
	if never.GetReportedAt() != nil {
		t.Error("reported at a time")
	}
	// Differences before a snapshot mean nothing.
	if err := say(a, &hubv1.DiscoveryReport{Puts: []*hubv1.DiscoveredService{service(1, "early")}}); err != nil {
		t.Fatal(err)
	}
	want("")
	ok := []*hubv1.ProviderState{{Provider: "host", State: "ok"}}
	if err := say(a, &hubv1.DiscoveryReport{Snapshot: true, Providers: ok, Puts: []*hubv1.DiscoveredService{service(80, "web"), service(3000, "grafana")}}); err != nil {
		t.Fatal(err)
	}
	want("grafana web")
	entry := web("g.example.com")
	entry.Origin = &hubv1.Origin{Url: "http://localhost:3000"}
	a.ok(entry)
	want("grafana(1) web")
	if err := say(a, &hubv1.DiscoveryReport{Providers: ok, Puts: []*hubv1.DiscoveredService{service(22, "ssh"), service(3000, "grafana2")}, Deletes: []string{service(80, "").GetId()}}); err != nil {
		t.Fatal(err)
	}
	want("ssh grafana2(1)")
	b := h.replica(&hubv1.Invite{Id: a.key().token})
	if err := say(b, &hubv1.DiscoveryReport{Puts: []*hubv1.DiscoveredService{service(9, "of another replica")}}); err != nil {
		t.Fatal(err)
	}
	want("ssh grafana2(1)")
	t.Run("filter and pages", func(t *testing.T) {
		if got, _ := h.services(&hubv1.ListServicesRequest{Id: "site", Filter: "GRAF"}); got != "grafana2(1)" {
			t.Errorf("filtered %q", got)
		}
		first, resp := h.services(&hubv1.ListServicesRequest{Id: "site", PageSize: 1})
		second, last := h.services(&hubv1.ListServicesRequest{Id: "site", PageSize: 1, PageToken: resp.GetNextPageToken()})
		if first != "ssh" || second != "grafana2(1)" || last.GetNextPageToken() != "" || last.GetReportedAt() == nil || len(last.GetProviders()) != 1 {
			t.Errorf("pages %q, %q, %v", first, second, last)
		}
	})
	t.Run("what cannot be stored", func(t *testing.T) {
		big := service(1, strings.Repeat("x", maxDiscoveredSize))
		for _, puts := range [][]*hubv1.DiscoveredService{{big}, {{}}, {service(1, "a"), service(1, "b")}} {
			if err := say(a, &hubv1.DiscoveryReport{Snapshot: true, Puts: puts}); !reason.Is(err, reason.Invalid) {
				t.Errorf("got %v, want invalid", err)
			}
		}
		var many []*hubv1.DiscoveredService
		for i := range maxDiscovered + 1 {
			many = append(many, service(i, "x"))
		}
		if err := say(a, &hubv1.DiscoveryReport{Snapshot: true, Puts: many}); !reason.Is(err, reason.TooLarge) {
			t.Errorf("got %v, want too_large", err)
		}
		want("ssh grafana2(1)")
	})
	h.restart()
	want("ssh grafana2(1)")
	if err := say(a, &hubv1.DiscoveryReport{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	want("")
}
