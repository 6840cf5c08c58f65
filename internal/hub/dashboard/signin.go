package dashboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

// signInData is what the sign-in page shows.
type signInData struct {
	Providers []hub.ProviderChoice
	Next      string
}

// nextPage is where to go after signing in: a path of these pages, never another site.
func nextPage(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.Contains(s, "\\") {
		return "/"
	}
	return u.RequestURI()
}

func (d *Dashboard) signInPage(w http.ResponseWriter, r *http.Request) {
	d.show(w, r, http.StatusOK, "sign-in", view{Data: signInData{d.hub.SignInProviders(r.Context()), nextPage(r.URL.Query().Get("next"))}})
}

func (d *Dashboard) signIn(w http.ResponseWriter, r *http.Request) {
	in, err := d.hub.SignIn(r.Context(), browserOf(r), strings.TrimSpace(r.PostFormValue("name")), r.PostFormValue("password"))
	next := nextPage(r.PostFormValue("next"))
	if err != nil {
		d.refuse(w, r, "sign-in", err, view{Data: signInData{d.hub.SignInProviders(r.Context()), next}})
		return
	}
	d.keep(w, in)
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (d *Dashboard) signOut(w http.ResponseWriter, r *http.Request) {
	if err := d.hub.SignOut(r.Context(), r.PostFormValue("everywhere") == "1"); err != nil {
		d.fail(w, r, err)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: signInCookie, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// setUpPage is there only while a set-up link waits.
func (d *Dashboard) setUpPage(w http.ResponseWriter, r *http.Request) {
	if _, open, err := d.hub.SetUpOpen(r.Context()); err != nil || !open {
		if err == nil {
			err = reason.New(reason.NoRoute, reason.HopHub, "there is no page at this address")
		}
		d.fail(w, r, err)
		return
	}
	d.show(w, r, http.StatusOK, "setup", view{})
}

func (d *Dashboard) setUp(w http.ResponseWriter, r *http.Request) {
	d.make(w, r, "setup", func(b hub.Browser, code, name, password string) (*hub.NewSignIn, error) {
		return d.hub.SetUp(r.Context(), b, code, name, password)
	})
}

func (d *Dashboard) join(w http.ResponseWriter, r *http.Request) {
	d.make(w, r, "join", func(b hub.Browser, code, name, password string) (*hub.NewSignIn, error) {
		return d.hub.Join(r.Context(), b, code, name, password)
	})
}

func (d *Dashboard) reset(w http.ResponseWriter, r *http.Request) {
	d.make(w, r, "reset", func(b hub.Browser, code, _, password string) (*hub.NewSignIn, error) {
		return d.hub.SetPassword(r.Context(), b, code, password)
	})
}

// linkPage shows the page of a one-time link. Nothing is used up by a GET: mail scanners follow
// links too.
func (d *Dashboard) linkPage(page string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { d.show(w, r, http.StatusOK, page, view{}) }
}

// make takes a form of a one-time link that sets a password.
func (d *Dashboard) make(w http.ResponseWriter, r *http.Request, page string, do func(b hub.Browser, code, name, password string) (*hub.NewSignIn, error)) {
	password := r.PostFormValue("password")
	var in *hub.NewSignIn
	var err error = &hub.Problem{Code: reason.Invalid, Field: "password2", Text: "the passwords differ", Remedy: "type the same one twice"}
	if password == r.PostFormValue("password2") {
		in, err = do(browserOf(r), linkCode(r), strings.TrimSpace(r.PostFormValue("name")), password)
	}
	if err != nil {
		d.refuse(w, r, page, err, view{Data: linkCode(r)})
		return
	}
	d.keep(w, in)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// linkCode is the secret of a one-time link: what stands behind the # of its address. Somebody may
// paste the whole address.
func linkCode(r *http.Request) string {
	code := strings.TrimSpace(r.PostFormValue("code"))
	if _, after, ok := strings.Cut(code, "#"); ok {
		return after
	}
	return code
}

func (d *Dashboard) enter(w http.ResponseWriter, r *http.Request) {
	in, err := d.hub.Enter(r.Context(), browserOf(r), linkCode(r))
	if err != nil {
		d.refuse(w, r, "enter", err, view{})
		return
	}
	d.keep(w, in)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
