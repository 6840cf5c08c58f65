package dashboard

import (
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

func (d *Dashboard) home(w http.ResponseWriter, r *http.Request) {
	d.show(w, r, http.StatusOK, "home", view{})
}

// accountData is what the account page shows.
type accountData struct {
	Sessions  []*hubv1.SignIn
	Keys      []*hubv1.Key
	Me        *hubv1.User
	Providers []hub.ProviderChoice
	Fresh     bool
	// Current is the sign-in of this browser, NewKey a key that was just made: shown once.
	Current, NewKey string
}

func (d *Dashboard) accountData(r *http.Request) (*accountData, error) {
	ctx := r.Context()
	a := hub.ActorFrom(ctx)
	me, err := d.hub.GetUser(ctx, a.UserID)
	if err != nil {
		return nil, err
	}
	out := &accountData{Me: me, Current: a.SignInID, Fresh: a.Fresh(d.hub.Config().Now()), Providers: d.hub.SignInProviders(ctx)}
	if out.Sessions, _, err = d.hub.ListSessions(ctx, &hubv1.ListSessionsRequest{PageSize: 100}); err != nil {
		return nil, err
	}
	out.Keys, _, err = d.hub.ListKeys(ctx, &hubv1.ListKeysRequest{PageSize: 100})
	return out, err
}

func (d *Dashboard) account(w http.ResponseWriter, r *http.Request) {
	data, err := d.accountData(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.show(w, r, http.StatusOK, "account", view{Data: data})
}

// refuseAccount shows the account page with what is wrong with one of its forms.
func (d *Dashboard) refuseAccount(w http.ResponseWriter, r *http.Request, what error) {
	d.hub.Finished(r.Context(), what)
	data, err := d.accountData(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.refuse(w, r, "account", what, view{Data: data})
}

// fresh tells whether the sign-in is young enough for what wants a fresh one.
func (d *Dashboard) fresh(a *hub.Actor) error {
	if a.Fresh(d.hub.Config().Now()) {
		return nil
	}
	return reason.New(reason.AccessDenied, reason.HopHub, "this needs a sign-in younger than ten minutes; sign out and in again")
}

func (d *Dashboard) changePassword(w http.ResponseWriter, r *http.Request) {
	password := r.PostFormValue("password")
	if password != r.PostFormValue("password2") {
		d.refuseAccount(w, r, &hub.Problem{Code: reason.Invalid, Field: "password2", Text: "the passwords differ", Remedy: "type the same one twice"})
		return
	}
	in, err := d.hub.ChangePassword(r.Context(), browserOf(r), r.PostFormValue("old"), password)
	if err != nil {
		d.refuseAccount(w, r, err)
		return
	}
	d.keep(w, in)
	http.Redirect(w, r, "/account", http.StatusSeeOther)
}

func (d *Dashboard) createKey(w http.ResponseWriter, r *http.Request) {
	a := hub.ActorFrom(r.Context())
	a.What, a.Subject = "KeyService/CreateKey", "key "+r.PostFormValue("name")
	if err := d.fresh(a); err != nil {
		d.refuseAccount(w, r, err)
		return
	}
	req := &hubv1.CreateKeyRequest{Name: r.PostFormValue("name"), Scopes: strings.Fields(r.PostFormValue("scopes"))}
	if days, ok := keyLives[r.PostFormValue("expires")]; ok {
		req.ExpiresAt = timestamppb.New(d.hub.Config().Now().Add(days))
	}
	_, token, err := d.hub.CreateKey(r.Context(), req)
	if err != nil {
		d.refuseAccount(w, r, err)
		return
	}
	data, err := d.accountData(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	data.NewKey = token
	d.show(w, r, http.StatusOK, "account", view{Data: data})
}

// keyLives are the choices of the form.
var keyLives = map[string]time.Duration{"7": 7 * 24 * time.Hour, "30": 30 * 24 * time.Hour, "90": 90 * 24 * time.Hour}

func (d *Dashboard) deleteKey(w http.ResponseWriter, r *http.Request) {
	a := hub.ActorFrom(r.Context())
	a.What, a.Subject = "KeyService/DeleteKey", "key "+r.PostFormValue("id")
	if err := d.hub.DeleteKey(r.Context(), r.PostFormValue("id")); err != nil {
		d.refuseAccount(w, r, err)
		return
	}
	http.Redirect(w, r, "/account", http.StatusSeeOther)
}

func (d *Dashboard) endSession(w http.ResponseWriter, r *http.Request) {
	a := hub.ActorFrom(r.Context())
	a.What, a.Subject = "SessionService/RevokeSession", "sign-in "+r.PostFormValue("id")
	if _, err := d.hub.RevokeSession(r.Context(), &hubv1.RevokeSessionRequest{Id: r.PostFormValue("id")}); err != nil {
		d.refuseAccount(w, r, err)
		return
	}
	http.Redirect(w, r, "/account", http.StatusSeeOther)
}
