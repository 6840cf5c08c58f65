// Package dashboard is what people see of the hub in a browser: signing in, one-time links, the
// confirmation of tools, and their own account.
//
// Cookies of pages are not those of the API: that takes keys only. Every write comes from a form of
// these pages, which is checked by what the browser says of its origin.
package dashboard

import (
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"

	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/reason"
)

//go:embed static pages.html
var files embed.FS

var pages = template.Must(template.New("pages.html").ParseFS(files, "pages.html"))

// Cookies of a browser: the sign-in, and that it was signed in before.
const (
	signInCookie = "__Host-adit"
	knownCookie  = "__Host-adit-known"
)

// policy lets pages load nothing but their own style and script.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxForm bounds a form.
const maxForm = 64 << 10

// Dashboard serves the pages of one hub.
type Dashboard struct {
	hub *hub.Hub
	log *slog.Logger
	mux *http.ServeMux
}

// New returns the pages of h.
func New(h *hub.Hub) *Dashboard {
	d := &Dashboard{hub: h, log: h.Config().Log, mux: http.NewServeMux()}
	d.mux.Handle("GET /static/", http.FileServerFS(files))
	get := func(path string, f http.HandlerFunc) { d.mux.HandleFunc("GET "+path, f) }
	post := func(path string, f http.HandlerFunc) { d.mux.HandleFunc("POST "+path, d.sameOrigin(f)) }

	get("/ca.crt", d.ca)
	get("/{$}", d.signedIn(d.home))
	get("/sign-in", d.signInPage)
	post("/sign-in", d.signIn)
	post("/sign-out", d.signedIn(d.signOut))
	get(hub.PathSetUp, d.setUpPage)
	post(hub.PathSetUp, d.setUp)
	get(hub.PathJoin, d.linkPage("join"))
	post(hub.PathJoin, d.join)
	get(hub.PathReset, d.linkPage("reset"))
	post(hub.PathReset, d.reset)
	get(hub.PathEnter, d.linkPage("enter"))
	post(hub.PathEnter, d.enter)
	get(hub.PathDevice, d.signedIn(d.devicePage))
	post(hub.PathDevice, d.signedIn(d.device))
	get("/account", d.signedIn(d.account))
	post("/account/password", d.signedIn(d.changePassword))
	post("/account/keys", d.signedIn(d.createKey))
	post("/account/keys/delete", d.signedIn(d.deleteKey))
	post("/account/sessions/end", d.signedIn(d.endSession))

	oidc := &oidcPages{hub: h, browser: browserOf, linking: d.actor, signedIn: d.keep, fail: d.fail}
	post("/auth/oidc/{name}/start", oidc.start)
	get("/auth/oidc/{name}/callback", oidc.callback)
	return d
}

// ServeHTTP serves a page, or that there is none.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if _, pattern := d.mux.Handler(r); pattern == "" {
		d.fail(w, r, reason.New(reason.NoRoute, reason.HopHub, "there is no page at this address"))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	d.mux.ServeHTTP(w, r)
}

// ca shows the internal CA to whoever wants to compare its fingerprint; it is no secret.
func (d *Dashboard) ca(w http.ResponseWriter, r *http.Request) {
	raw := d.hub.CA()
	if raw == nil {
		d.fail(w, r, reason.New(reason.NoRoute, reason.HopHub, "this hub has no CA of its own"))
		return
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(raw)
}

// sameOrigin refuses what another site's page sent, that of a tunnel included: tunnels are
// same-site with the hub, so a cookie's SameSite does not tell them apart.
func (d *Dashboard) sameOrigin(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		origin := r.Header.Get("Origin")
		if site != "same-origin" && (site != "" || origin == "" || origin != "https://"+r.Host) {
			d.fail(w, r, reason.New(reason.AccessDenied, reason.HopHub, "the form was not sent by this page; load it again"))
			return
		}
		next(w, r)
	}
}

// signedIn shows the sign-in page to who is not signed in, and comes back afterwards.
func (d *Dashboard) signedIn(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := d.actor(r)
		switch {
		case reason.Is(err, reason.Unauthenticated) && r.Method == http.MethodGet:
			to := "/sign-in"
			if r.URL.Path != "/" {
				to += "?next=" + template.URLQueryEscaper(r.URL.RequestURI())
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
		case err != nil:
			d.fail(w, r, err)
		default:
			next(w, r.WithContext(hub.WithActor(r.Context(), a)))
		}
	}
}

// actor is who is signed in.
func (d *Dashboard) actor(r *http.Request) (*hub.Actor, error) {
	cookie := ""
	if c, err := r.Cookie(signInCookie); err == nil {
		cookie = c.Value
	}
	return d.hub.SignedIn(r.Context(), cookie, browserOf(r).Address)
}

func browserOf(r *http.Request) hub.Browser {
	b := hub.Browser{UserAgent: r.UserAgent()}
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		b.Address = ap.Addr().Unmap()
	}
	if c, err := r.Cookie(knownCookie); err == nil {
		b.Known = c.Value
	}
	return b
}

// keep gives the browser the cookies of its sign-in.
func (d *Dashboard) keep(w http.ResponseWriter, in *hub.NewSignIn) {
	set := func(name, value string, c http.Cookie) {
		c.Name, c.Value, c.Path, c.Secure, c.HttpOnly, c.SameSite = name, value, "/", true, true, http.SameSiteStrictMode
		http.SetCookie(w, &c)
	}
	set(signInCookie, in.Cookie, http.Cookie{Expires: in.Expires})
	set(knownCookie, in.Known, http.Cookie{Expires: in.KnownExpires})
}

// view is what every page has, and what a form had when it was refused.
type view struct {
	Hub   string
	Actor *hub.Actor
	// Problem is why the form was refused, Field the one at fault.
	Problem, Field string
	// Form are the values that were typed, without secrets.
	Form map[string]string
	// Data is the page's own.
	Data any
}

func (d *Dashboard) show(w http.ResponseWriter, r *http.Request, status int, page string, v view) {
	v.Hub = d.hub.Config().HubHost
	if a := hub.ActorFrom(r.Context()); a.UserID != "" {
		v.Actor = a
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if err := pages.ExecuteTemplate(w, page, v); err != nil {
		d.log.Error("page not shown", "page", page, "error", err)
	}
}

// fail shows why something did not work, on a page of its own.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, text := explain(err)
	if status == http.StatusInternalServerError {
		d.log.Error("page failed", "path", r.URL.Path, "error", err)
	}
	d.show(w, r, status, "failed", view{Problem: text})
}

// refuse shows a form again with what is wrong with it.
func (d *Dashboard) refuse(w http.ResponseWriter, r *http.Request, page string, err error, v view) {
	status, text := explain(err)
	if status == http.StatusInternalServerError {
		d.log.Error("form failed", "path", r.URL.Path, "error", err)
	}
	v.Problem = text
	var p *hub.Problem
	if errors.As(err, &p) {
		v.Field = p.Field
	}
	v.Form = map[string]string{}
	for name, values := range r.PostForm {
		if !strings.Contains(name, "password") && name != "old" && name != "code" && len(values) > 0 {
			v.Form[name] = values[0]
		}
	}
	d.show(w, r, status, page, v)
}

// explain is an error as a person reads it. What the hub did not mean to say stays in its log.
func explain(err error) (status int, text string) {
	var p *hub.Problem
	if errors.As(err, &p) {
		text = strings.TrimSpace(p.Text)
		if p.Remedy != "" {
			text += "; " + p.Remedy
		}
	}
	var e *reason.Error
	if !errors.As(err, &e) {
		return http.StatusInternalServerError, "The hub failed; its log says more."
	}
	if text == "" {
		text = e.Detail
	}
	switch e.Code {
	case reason.Unauthenticated:
		status = http.StatusUnauthorized
	case reason.AccessDenied:
		status = http.StatusForbidden
	case reason.NotFound, reason.NoRoute:
		status = http.StatusNotFound
	case reason.RateLimited:
		status = http.StatusTooManyRequests
	case reason.NameConflict:
		status = http.StatusConflict
	case reason.Invalid:
		status = http.StatusBadRequest
	case reason.StoreUnavailable:
		return http.StatusServiceUnavailable, "The hub cannot reach its store; try again."
	default:
		return http.StatusInternalServerError, "The hub failed; its log says more."
	}
	return status, strings.ToUpper(text[:1]) + text[1:] + "."
}
