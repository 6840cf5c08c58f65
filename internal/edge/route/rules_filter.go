package route

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// Redirect is the rule's redirect, nil if it has none.
func (c *Rule) Redirect() *hubv1.Redirect {
	for _, f := range c.filters {
		if r := f.GetRedirect(); r != nil {
			return r
		}
	}
	return nil
}

// Location is where a redirect sends a request that arrived for host (with its port, if any) by
// scheme. It is always an absolute URL, so a path can never become a host.
func (c *Rule) Location(rd *hubv1.Redirect, scheme, host string, p Path, rawQuery string) (location string, status int) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.Trim(host, "[]"), ""
	}
	if strings.Trim(port, "0123456789") != "" {
		port = "" // what is no port must not get into a header
	}
	if rd.GetScheme() != "" && rd.GetScheme() != scheme {
		scheme, port = rd.GetScheme(), "" // its usual port, unless one is named
	}
	if rd.GetHostname() != "" {
		name = rd.GetHostname()
	}
	if rd.GetPort() != 0 {
		port = strconv.FormatUint(uint64(rd.GetPort()), 10)
	}
	if scheme == "https" && port == "443" || scheme == "http" && port == "80" {
		port = ""
	}
	authority := name
	if strings.Contains(name, ":") {
		authority = "[" + name + "]"
	}
	if port != "" {
		authority += ":" + port
	}
	location = scheme + "://" + authority + c.replacePath(p.Raw, rd.GetPath(), rd.GetPathPrefix())
	if rawQuery != "" {
		location += "?" + rawQuery
	}
	status = int(rd.GetStatus())
	if status < 300 || status > 399 {
		status = http.StatusFound
	}
	return location, status
}

// Rewrite returns the path and the host that go to the origin; host is "" where no filter
// changes it.
func (c *Rule) Rewrite(p Path) (raw, host string) {
	raw = p.Raw
	for _, f := range c.filters {
		if rw := f.GetRewrite(); rw != nil {
			raw = c.replacePath(raw, rw.GetPath(), rw.GetPathPrefix())
			if rw.GetHostname() != "" {
				host = rw.GetHostname()
			}
		}
	}
	return raw, host
}

// replacePath replaces the whole escaped path, or the prefix that the rule matched.
func (c *Rule) replacePath(raw, whole, prefix string) string {
	if whole != "" {
		return escaped(whole)
	}
	if prefix == "" {
		return raw
	}
	rest := raw
	if exact := c.match.GetPathExact(); exact != "" {
		rest = ""
	} else {
		for range strings.Count(c.prefix, "/") {
			if i := strings.IndexByte(rest[1:], '/'); i >= 0 {
				rest = rest[1+i:]
			} else {
				rest = ""
				break
			}
		}
	}
	out := strings.TrimRight(escaped(prefix), "/") + rest
	if out == "" {
		return "/"
	}
	return out
}

// escaped is a configured path as it goes on the wire.
func escaped(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || u.RawQuery != "" {
		u = &url.URL{Path: path}
	}
	return u.EscapedPath()
}

// RequestHeaders applies the rule's filters to the headers that go to the origin. The host they
// set, if any, is returned. Headers for which fixed is true are not touched.
func (c *Rule) RequestHeaders(h http.Header, fixed func(name string) bool) (host string) {
	for _, f := range c.filters {
		if hf := f.GetRequestHeaders(); hf != nil {
			for _, v := range hf.GetSet() {
				if http.CanonicalHeaderKey(v.GetName()) == "Host" {
					host = v.GetValue()
				}
			}
			filterHeaders(h, hf, fixed)
		}
	}
	return host
}

// ResponseHeaders applies the rule's filters to the headers that go to the visitor.
func (c *Rule) ResponseHeaders(h http.Header) {
	for _, f := range c.filters {
		if hf := f.GetResponseHeaders(); hf != nil {
			filterHeaders(h, hf, nil)
		}
	}
}

// framing are the headers that belong to a connection, not to a message: no filter may touch
// them.
var framing = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Host": true,
}

func filterHeaders(h http.Header, f *hubv1.HeaderFilter, fixed func(string) bool) {
	may := func(name string) bool {
		return !framing[http.CanonicalHeaderKey(name)] && (fixed == nil || !fixed(name))
	}
	for _, v := range f.GetSet() {
		if may(v.GetName()) {
			h.Set(v.GetName(), v.GetValue())
		}
	}
	for _, v := range f.GetAdd() {
		if may(v.GetName()) {
			h.Add(v.GetName(), v.GetValue())
		}
	}
	for _, name := range f.GetRemove() {
		if may(name) {
			h.Del(name)
		}
	}
}
