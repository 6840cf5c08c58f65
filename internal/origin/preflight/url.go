package preflight

import (
	"net/netip"
	"net/url"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
)

var schemesOf = map[wirev1.Kind][]string{
	wirev1.Kind_KIND_HTTP: {origin.SchemeHTTP, origin.SchemeHTTPS, origin.SchemeH2C},
	wirev1.Kind_KIND_TLS:  {origin.SchemeTCP},
	wirev1.Kind_KIND_TCP:  {origin.SchemeTCP, origin.SchemeTLS},
	wirev1.Kind_KIND_UDP:  {origin.SchemeUDP},
}

// readURL reads the origin as people write it and notes what is wrong with the spelling. What can
// be guessed is, so that the rest of the check tells more; nil = it cannot be tried.
func (r *run) readURL() *origin.Spec {
	text, kind := strings.TrimSpace(r.ask.GetOrigin().GetUrl()), r.ask.GetKind()
	schemes := schemesOf[kind]
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = schemes[0], text
		r.add("url_missing_scheme", warning, "The origin has no scheme; "+scheme+" is assumed.", clean(text),
			fix{"origin", scheme + "://" + rest, "Write the scheme."})
	}
	scheme = strings.ToLower(scheme)
	if !contains(schemes, scheme) {
		r.add("url_unsupported_scheme", failure, "The scheme "+scheme+" is not possible for this kind of tunnel.", clean(text),
			fix{"origin", "", "Use " + strings.Join(schemes, ", ") + "."})
		return nil
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil || u.Hostname() == "" {
		r.add("url_invalid", failure, "The origin is not scheme://host:port.", clean(text), fix{"origin", "", "Write it as " + scheme + "://host:port."})
		return nil
	}
	bare := scheme + "://" + u.Host
	if u.User != nil {
		r.add("url_embedded_credentials", failure, "The origin holds a user name or a password, which would show in lists and logs.", u.Redacted(),
			fix{"origin", bare, "Leave them out; a managed tunnel can send them to the origin as upstream basic auth."})
	}
	switch {
	case u.Path == "/" && u.RawQuery == "" && u.Fragment == "":
		r.add("url_trailing_slash", note, "The origin ends with a slash, which means nothing.", clean(text), fix{"origin", bare, "Leave it out."})
	case u.Path != "" || u.RawQuery != "" || u.Fragment != "":
		r.add("url_has_path", failure, "The origin has a path, but it is a host and a port only: the visitor's path is sent as it is.", clean(bare+u.Path),
			fix{"origin", bare, "Leave the path out; a rule of the tunnel can rewrite paths."})
	}
	o := &hubv1.Origin{
		Url: bare, ProxyProtocol: r.ask.GetOrigin().GetProxyProtocol(), ServerName: r.ask.GetOrigin().GetServerName(),
		InsecureSkipVerify: r.ask.GetOrigin().GetInsecureSkipVerify(), CaPem: r.ask.GetOrigin().GetCaPem(),
	}
	s, err := origin.Parse(o)
	if err != nil {
		r.add("url_invalid", failure, "The origin cannot be used: "+err.Error()+".", clean(bare), fix{"origin", "", "Write it as " + scheme + "://host:port."})
		return nil
	}
	return s
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// private tells whether visitors on the internet cannot reach host: a private or loopback
// address, localhost, a name without a dot, or one of the names that only exist in local networks.
func private(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || cgnat.Contains(a)
	}
	for _, s := range []string{".local", ".lan", ".internal", ".home.arpa", ".localhost", ".localdomain", ".test"} {
		if strings.HasSuffix(host, s) {
			return true
		}
	}
	return !strings.Contains(host, ".")
}

var cgnat = netip.MustParsePrefix("100.64.0.0/10")

// clean keeps what comes before an @ and what follows a ? out of evidence: secrets are there.
func clean(s string) string {
	s, _, _ = strings.Cut(s, "?")
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	}
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = "…" + authority[i:]
	}
	out := authority
	if path != "" || strings.HasSuffix(rest, "/") {
		out += "/" + path
	}
	if ok {
		out = scheme + "://" + out
	}
	return out
}
