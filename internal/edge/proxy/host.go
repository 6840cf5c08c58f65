package proxy

import (
	"net/http"
	"net/netip"
	"strings"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/pages"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/reason"
)

// requestHost returns the normalized host of a request whose target has the form that an origin
// server takes: a path, or an extended CONNECT with one.
func requestHost(r *http.Request) (string, *reason.Error) {
	bad := func(format string, args ...any) (string, *reason.Error) {
		return "", reason.New(reason.BadRequest, reason.HopVisitor, format, args...)
	}
	switch protocol := connectProtocol(r); {
	case r.Method == http.MethodConnect && protocol == "":
		return bad("CONNECT is for proxies; this is none")
	case httpAgain(protocol):
		return bad("an extended CONNECT may not lead to HTTP again")
	case !strings.HasPrefix(r.RequestURI, "/"):
		// Also the absolute form: net/http hides whether Host agrees with it.
		return bad("the request target %q does not start with a slash", clip(r.RequestURI))
	case r.Host == "":
		return bad("the request names no host")
	}
	host, err := hostname.FromHost(r.Host)
	if err == nil {
		return host, nil
	}
	if isAddress(r.Host) {
		return "", reason.New(reason.NoRoute, reason.HopEdge, "no tunnel is published at the address %s; use its host name", r.Host)
	}
	return bad("%v", err)
}

func isAddress(host string) bool {
	if _, err := netip.ParseAddrPort(host); err == nil {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// connectProtocol is the protocol of an extended CONNECT (RFC 8441, RFC 9220), "" for all other
// requests. HTTP/2 has it in a header, HTTP/3 in Proto.
func connectProtocol(r *http.Request) string {
	if r.Method != http.MethodConnect {
		return ""
	}
	if v := r.Header.Get(":protocol"); v != "" {
		return v
	}
	if r.ProtoMajor == 3 && !strings.HasPrefix(r.Proto, "HTTP/") {
		return r.Proto
	}
	return ""
}

// hasToken reports whether a comma-separated header has a token, whatever its case.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// upgradeOf is the protocol that a request wants to switch to, "" for most.
func upgradeOf(r *http.Request) string {
	if !hasToken(r.Header["Connection"], "Upgrade") {
		return ""
	}
	return r.Header.Get("Upgrade")
}

// isWebSocket reports whether a request wants to become a WebSocket, in any version of HTTP.
func isWebSocket(r *http.Request) bool {
	return hasToken(r.Header["Upgrade"], "websocket") && upgradeOf(r) != "" || strings.EqualFold(connectProtocol(r), "websocket")
}

// classOf tells conversations from transfers.
func classOf(r *http.Request) wirev1.Class {
	if upgradeOf(r) != "" || r.Method == http.MethodConnect || pages.IsGRPC(r.Header) {
		return wirev1.Class_CLASS_INTERACTIVE
	}
	for _, v := range r.Header["Accept"] {
		if v = strings.ToLower(v); strings.Contains(v, "text/event-stream") || strings.Contains(v, "application/grpc") {
			return wirev1.Class_CLASS_INTERACTIVE
		}
	}
	return wirev1.Class_CLASS_BULK
}
