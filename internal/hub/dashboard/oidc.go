package dashboard

import (
	"html/template"
	"net/http"

	"github.com/adit-dev/adit/internal/hub"
)

// flowCookie binds a sign-in at a provider to the browser that began it. It must come back with a
// navigation from the provider, so it cannot be Strict.
const flowCookie = "__Host-adit-flow"

// oidcPages send people to a provider and take them back.
type oidcPages struct {
	hub *hub.Hub
	// browser is who sends a request.
	browser func(*http.Request) hub.Browser
	// linking is who is signed in and wants an account linked.
	linking func(*http.Request) (*hub.Actor, error)
	// signedIn gives the browser the cookies of its new sign-in.
	signedIn func(w http.ResponseWriter, in *hub.NewSignIn)
	// fail shows why it did not work.
	fail func(w http.ResponseWriter, r *http.Request, err error)
}

// start is the POST of a form: it goes to the provider. The form's link=1 links the account to who
// is signed in.
func (p *oidcPages) start(w http.ResponseWriter, r *http.Request) {
	var who *hub.Actor
	var err error
	if r.PostFormValue("link") == "1" {
		if who, err = p.linking(r); err != nil {
			p.fail(w, r, err)
			return
		}
	}
	address, cookie, err := p.hub.StartOIDC(r.Context(), r.PathValue("name"), who)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: flowCookie, Value: cookie, Path: "/", MaxAge: 600, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	// A redirect would still be the form's way, which the policy of these pages keeps at home; from
	// this page on it is a navigation like any other.
	onward(w, page{"To the provider", "You are on your way to the provider.", address})
}

// callback is where the provider sends the browser back to.
func (p *oidcPages) callback(w http.ResponseWriter, r *http.Request) {
	flow := ""
	if c, err := r.Cookie(flowCookie); err == nil {
		flow = c.Value
	}
	http.SetCookie(w, &http.Cookie{Name: flowCookie, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	in, err := p.hub.FinishOIDC(r.Context(), p.browser(r), r.PathValue("name"), r.URL.Query(), flow)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	next := "/account"
	if in != nil {
		p.signedIn(w, in)
		next = "/"
	}
	// A redirect would go on as the provider's navigation, without the Strict cookie of the
	// session; one that begins at this page has it.
	onward(w, page{"Signed in", "You are signed in.", next})
}

// page is one that goes on by itself.
type page struct{ Title, Text, Next string }

func onward(w http.ResponseWriter, p page) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = goOn.Execute(w, p)
}

var goOn = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={{.Next}}"><title>{{.Title}}</title>
<link rel="stylesheet" href="/static/style.css"><link rel="icon" href="/static/icon.svg" type="image/svg+xml"></head>
<body><main><h1>{{.Title}}</h1><p>{{.Text}} <a href="{{.Next}}">Go on</a></p></main></body></html>
`))
