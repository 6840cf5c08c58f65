package server

import (
	"fmt"
	"html"
	"net"
	"net/http"
	"strings"

	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/telemetry"
)

// page is what a browser gets at the hub's host: enough to know what it is and what comes next.
const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Adit</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:10vh auto;padding:0 1rem;color:#1b1b1b;background:#fdfdfb}code{background:#eee;padding:.1em .3em}@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181a}code{background:#2a2d30}}</style>
<h1>Adit</h1>
<p>This is the hub of <strong>%s</strong>. It runs version %s.</p>
<p>It is managed with the command line: on the server itself, <code>adit invite create</code> makes a token for an agent.</p>
</html>
`

// hubHandler serves the hub's host: the API and machine paths go to api, the rest is a page.
func hubHandler(api http.Handler, domain string) http.Handler {
	body := fmt.Sprintf(page, html.EscapeString(domain), html.EscapeString(telemetry.Version()))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == hublink.Path {
			front.HandOver(r.Context()) // a machine's link is no visitor's connection
		}
		if r.URL.Path != "/" || r.Method != http.MethodGet && r.Method != http.MethodHead {
			api.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte(body))
	})
}

// redirect is port 80 of a server without the edge role: challenges, else https.
func redirect(challenge func(http.ResponseWriter, *http.Request) bool, httpsPort uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if challenge(w, r) {
			return
		}
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if host == "" || strings.ContainsAny(host, "/\\@?#% ") {
			http.Error(w, "bad_request: the Host header is no host name", http.StatusBadRequest)
			return
		}
		if httpsPort != 443 {
			host = net.JoinHostPort(strings.Trim(host, "[]"), fmt.Sprint(httpsPort))
		}
		http.Redirect(w, r, "https://"+host+r.URL.RequestURI(), http.StatusMovedPermanently)
	})
}
