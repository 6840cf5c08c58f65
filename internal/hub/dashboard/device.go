package dashboard

import (
	"net/http"
	"strings"

	"github.com/adit-dev/adit/internal/hub"
)

// deviceData is what the page for tools shows: a tool that waits, or what became of it.
type deviceData struct {
	Ask        *hub.DeviceAsk
	Done       string
	CodeOnly   bool
	UserCode   string
	WholeRole  string
	ScopesText string
}

func (d *Dashboard) devicePage(w http.ResponseWriter, r *http.Request) {
	code := strings.ToUpper(strings.TrimSpace(r.URL.Query().Get("code")))
	if code == "" {
		d.show(w, r, http.StatusOK, "device", view{Data: deviceData{CodeOnly: true}})
		return
	}
	ask, err := d.hub.DeviceRequest(r.Context(), code, browserOf(r).Address)
	if err != nil {
		d.refuse(w, r, "device", err, view{Data: deviceData{CodeOnly: true, UserCode: code}})
		return
	}
	a := hub.ActorFrom(r.Context())
	d.show(w, r, http.StatusOK, "device", view{Data: deviceData{Ask: ask, UserCode: code, WholeRole: a.Role, ScopesText: strings.Join(ask.Scopes, ", ")}})
}

func (d *Dashboard) device(w http.ResponseWriter, r *http.Request) {
	code, approve := r.PostFormValue("user_code"), r.PostFormValue("answer") == "approve"
	if err := d.hub.AnswerDevice(r.Context(), hub.ActorFrom(r.Context()), code, approve); err != nil {
		d.refuse(w, r, "device", err, view{Data: deviceData{CodeOnly: true, UserCode: code}})
		return
	}
	done := "denied"
	if approve {
		done = "approved"
	}
	d.show(w, r, http.StatusOK, "device", view{Data: deviceData{Done: done}})
}
