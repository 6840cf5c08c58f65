package server

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/hublink"
)

// hubHandler serves the hub's host: the API and machines' paths go to api, the rest are pages.
func hubHandler(api, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == hublink.Path:
			front.HandOver(r.Context()) // a machine's link is no visitor's connection
			api.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, apiPrefix) || r.URL.Path == "/openapi.json":
			api.ServeHTTP(w, r)
		default:
			pages.ServeHTTP(w, r)
		}
	})
}

// apiPrefix begins the path of every procedure.
const apiPrefix = "/adit.hub.v1."

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
