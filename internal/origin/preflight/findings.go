package preflight

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/origin"
)

// hosts finds which Host header works and returns the reply that the tunnel's visitors would get;
// nil when there is none.
func (r *run) hosts(ctx context.Context, spec *origin.Spec, replies map[string]*reply, hostHeader string) *reply {
	visitor, own := replies["visitor"], replies["origin"]
	if visitor == nil {
		visitor = own
	}
	if own == nil {
		own = visitor
	}
	used, mode := visitor, "visitor"
	switch hostHeader {
	case "", "visitor":
	case "origin":
		used, mode = own, "origin"
	default:
		used, mode = r.get(ctx, spec, hostHeader, "/", nil), hostHeader
	}
	both := visitor.String() + "; " + own.String()
	switch {
	case visitor.fine() && replies["visitor"] != nil:
		r.out.WorkingHostHeader = "visitor"
	case own.fine() && replies["origin"] != nil:
		r.out.WorkingHostHeader = "origin"
	}
	switch {
	case used.fine():
		return used
	case mode == "visitor" && own.fine():
		r.add("origin_rejects_tunnel_host", failure, "The service refuses requests for the tunnel's host name, and takes those for its own.", both,
			fix{"host_header", "origin", "Send the origin's own host; or allow " + r.ask.GetHostname() + " in the service (allowed or trusted hosts)."})
		return own
	case mode != "visitor" && visitor.fine():
		r.add("host_header_breaks_this_origin", failure, "The service refuses the Host header that the tunnel would send, and takes the visitor's.", used.String()+"; "+visitor.String(),
			fix{"host_header", "", "Leave host_header empty."})
		return visitor
	case used.err != nil:
		r.failed(used, spec)
		return nil
	case used.status >= 500:
		r.add("origin_request_failed", failure, "The service answers with an error.", used.String(), fix{"", "", "Its log may say more."})
	case used.status == http.StatusBadRequest || used.status == http.StatusForbidden:
		r.add("origin_request_failed", warning, "The service refuses a plain request for its first page, whatever Host it names.", both,
			fix{"", "", "It may have to be told to trust the agent's address as a proxy (X-Forwarded-For)."})
	}
	return used
}

// redirect is where a reply sends visitors; nil if nowhere.
func (a *reply) redirect() *url.URL {
	if a.status < 300 || a.status > 399 || a.header.Get("Location") == "" {
		return nil
	}
	u, err := url.Parse(a.header.Get("Location"))
	if err != nil {
		return nil
	}
	return u
}

// follow judges a redirect, and takes one that stays at the origin.
func (r *run) follow(ctx context.Context, spec *origin.Spec, a *reply) *reply {
	to := a.redirect()
	if to == nil {
		return a
	}
	evidence := a.String() + ", Location: " + clean(to.String())
	asked, _ := hostname.FromHost(a.host)
	target := strings.ToLower(to.Hostname())
	elsewhere := to.Host != "" && target != r.ask.GetHostname() && target != asked
	switch {
	case to.Scheme == "https" && !spec.TLS() && (target == asked || target == r.ask.GetHostname() || target == spec.Host):
		f := fix{"", "", "Turn the redirect off in the service, or have it believe X-Forwarded-Proto from the agent."}
		if target == spec.Host {
			f = fix{"origin", "https://" + to.Host, "Use the address that it redirects to as origin; or turn the redirect off in the service."}
		}
		severity := warning
		if to.EscapedPath() == a.path || to.EscapedPath() == "" {
			// The visitor comes back to where they were: for ever.
			severity = failure
		}
		r.add("origin_redirects_to_https", severity, "The service redirects to https although it is told that the visitor uses https (X-Forwarded-Proto).", evidence, f)
		return a
	case to.Host != "" && target != r.ask.GetHostname() && private(target):
		f := fix{"", "", "Set the service's own public address (base or external URL) to https://" + r.ask.GetHostname() + "."}
		if r.ask.GetOrigin().GetHostHeader() != "" && r.out.WorkingHostHeader == "visitor" {
			f = fix{"host_header", "", "Send the visitor's host, so that the service knows it. Or set its public address (base or external URL)."}
		}
		if r.ask.GetHostname() != "" {
			r.add("origin_redirects_to_private_address", failure, "The service redirects visitors to an address that they cannot reach.", evidence, f)
		}
		return a
	case elsewhere, to.EscapedPath() == "" && to.Opaque != "":
		return a
	}
	path := to.EscapedPath()
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	next := r.get(ctx, spec, a.host, path, nil)
	if next.err != nil {
		return a
	}
	return next
}

// headers judges what a reply's header says.
func (r *run) headers(spec *origin.Spec, a *reply) {
	public := r.ask.GetHostname()
	if a.status == http.StatusUnauthorized {
		scheme, _, _ := strings.Cut(a.header.Get("WWW-Authenticate"), " ")
		r.add("origin_requires_auth", note, "The service asks visitors for credentials of its own.", a.String()+", WWW-Authenticate: "+scheme,
			fix{"", "", "Nothing, if this is meant. A managed tunnel can send them for all visitors as upstream basic auth."})
	}
	if v := a.header.Get("Strict-Transport-Security"); v != "" && !spec.TLS() {
		r.add("origin_sends_hsts_over_http", warning, "The service sends Strict-Transport-Security over plain HTTP. Through the tunnel browsers believe it, for as long as it says.", "Strict-Transport-Security: "+v,
			fix{"", "", "Turn it off in the service, or make sure that every name it covers has https."})
	}
	for _, line := range a.header["Set-Cookie"] {
		c, err := http.ParseSetCookie(line)
		if err != nil || c.Domain == "" || public == "" {
			continue
		}
		domain := strings.TrimPrefix(strings.ToLower(c.Domain), ".")
		if public != domain && !strings.HasSuffix(public, "."+domain) {
			// The value of a cookie is a secret.
			r.add("origin_cookie_scoped_elsewhere", warning, "The service sets a cookie for another domain; browsers drop it, and sign-ins may not last.", "Set-Cookie: "+c.Name+"=…; Domain="+c.Domain,
				fix{"", "", "Set the service's cookie domain to " + public + ", or to nothing."})
		}
	}
}

var (
	absolute    = regexp.MustCompile(`(?i)\b(https?|wss?):(?:\\?/){2}(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]+)?`)
	usesSockets = regexp.MustCompile(`(?i)\bnew\s+WebSocket\s*\(|\bwss?:\\?/\\?/|/socket\.io/`)
)

// page judges the body of an HTML page.
func (r *run) page(spec *origin.Spec, a *reply) {
	public := r.ask.GetHostname()
	if public == "" || !strings.Contains(strings.ToLower(a.header.Get("Content-Type")), "html") {
		return
	}
	for _, at := range absolute.FindAllSubmatchIndex(a.body, -1) {
		host := strings.Trim(strings.ToLower(string(a.body[at[4]:at[5]])), "[]")
		if host == public || !private(host) && host != spec.Host {
			continue
		}
		r.add("page_references_private_address", warning, "The page refers to an address that visitors cannot reach.", around(a.body, at[0], at[1]),
			fix{"", "", "Set the service's own public address (base or external URL) to https://" + public + "."})
		return
	}
}

// around is what stands before and after a match, without the query of a URL.
func around(b []byte, from, to int) string {
	const more = 60
	s := string(b[max(0, from-more):from]) + string(b[from:to])
	rest := string(b[to:min(len(b), to+more)])
	if i := strings.IndexAny(rest, "?\"'<> "); i >= 0 {
		rest = rest[:i]
	}
	return s + rest
}

// referer looks whether the service refuses visitors who come from a page of the tunnel's host.
func (r *run) referer(ctx context.Context, spec *origin.Spec, a *reply) {
	if r.ask.GetHostname() == "" || !a.fine() {
		return
	}
	from := "https://" + r.ask.GetHostname() + "/"
	b := r.get(ctx, spec, a.host, "/", http.Header{"Referer": {from}})
	if b.fine() || ctx.Err() != nil {
		return
	}
	f := fix{"host_header", "", "Send the visitor's host, which the Referer names; or have the service trust https://" + r.ask.GetHostname() + "."}
	if a.host == r.ask.GetHostname() {
		f = fix{"", "", "Have the service trust https://" + r.ask.GetHostname() + " (trusted origins, allowed referers)."}
	}
	r.add("origin_checks_referer", failure, "The service refuses requests that come from a page of the tunnel's own address.", "with Referer "+from+": "+b.String(), f)
}

// webSocket looks whether the page wants a WebSocket that the tunnel refuses, and whether an
// upgrade from the tunnel's address would be refused.
func (r *run) webSocket(ctx context.Context, spec *origin.Spec, a, page *reply) {
	if !r.ask.GetWebsocket() {
		m := usesSockets.FindIndex(page.body)
		switch {
		case a.status == http.StatusUpgradeRequired:
			r.add("origin_wants_websockets", warning, "The service wants a WebSocket.", a.String(), fix{"websocket", "true", "Switch WebSocket on for the tunnel."})
		case m != nil:
			r.add("origin_wants_websockets", warning, "The page opens WebSockets.", around(page.body, m[0], m[1]), fix{"websocket", "true", "Switch WebSocket on for the tunnel."})
		}
		return
	}
	if r.ask.GetHostname() == "" || spec.Scheme == origin.SchemeH2C {
		return
	}
	try := func(from string) *reply {
		return r.get(ctx, spec, a.host, "/", http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"YWRpdCBwcmVmbGlnaHQhIQ=="}, "Origin": {from},
		})
	}
	public := "https://" + r.ask.GetHostname()
	if w := try(public); w.err == nil && w.status == http.StatusForbidden {
		own := "http://" + spec.Host
		if spec.TLS() {
			own = "https://" + spec.Host
		}
		if host, port, err := net.SplitHostPort(a.host); err == nil {
			own = strings.Split(own, "://")[0] + "://" + net.JoinHostPort(host, port)
		}
		if o := try(own); o.err == nil && o.status == http.StatusSwitchingProtocols {
			r.add("origin_rejects_websocket_origin", failure, "The service refuses WebSockets from pages of the tunnel's address, and takes those from its own.", "Origin "+public+": "+w.String()+"; Origin "+own+": "+o.String(),
				fix{"", "", "Have the service trust " + public + " (allowed origins)."})
		}
	}
}
