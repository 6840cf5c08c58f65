package proxy

import (
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/adit-dev/adit/internal/reason"
)

// hopName is how an edge calls itself in Via; maxHops is how often a request may have passed one
// already. A service behind a tunnel may well call another tunnel, so once is no loop.
const (
	hopName = "adit"
	maxHops = 2
)

// looped reports whether a request passed too many edges.
func looped(h http.Header) bool {
	n := 0
	for _, v := range h["Via"] {
		for hop := range strings.SplitSeq(v, ",") {
			if f := strings.Fields(hop); len(f) >= 2 && f[1] == hopName {
				n++
			}
		}
	}
	return n >= maxHops
}

// identity reports whether a header of a visitor claims to be one of those that tell the origin
// who the visitor is. Origins that are CGI-like see no difference between "-", "_" and ".".
func identity(name string) bool {
	n := plainName(name)
	return strings.HasPrefix(n, "x-adit-") || n == "adit-assertion"
}

// forwarding is identity for the headers that tell how the request came.
func forwarding(name string) bool {
	n := plainName(name)
	return strings.HasPrefix(n, "x-forwarded-") || n == "x-real-ip" || n == "forwarded"
}

// suspect is a quick look: names of neither kind begin otherwise.
func suspect(name string) bool {
	if name == "" {
		return false
	}
	switch name[0] | 0x20 {
	case 'a', 'f', 'x':
		return true
	}
	return false
}

var dashes = strings.NewReplacer("_", "-", ".", "-")

func plainName(name string) string { return dashes.Replace(strings.ToLower(name)) }

// refusedTrailer refuses requests that announce an identity or forwarding header as a trailer:
// trailers come after the headers are decided.
func refusedTrailer(r *http.Request) *reason.Error {
	for name := range r.Trailer {
		if identity(name) || forwarding(name) {
			return reason.New(reason.BadRequest, reason.HopVisitor, "the trailer %s is not allowed", name)
		}
	}
	return nil
}

// visitor is who sent a request, after trusted proxies.
type visitor struct {
	// addr is the one address for rules, limits, logs and headers; invalid if the peer has none
	// (a unix socket). Its port is 0 if a proxy told the address without one.
	addr netip.AddrPort
	// chain are the addresses from the visitor to the peer.
	chain []netip.Addr
	// proto and host are what the visitor used towards the first trusted proxy, or us.
	proto, host string
	// trusted is set when the peer is a trusted proxy.
	trusted bool
}

func (v *visitor) String() string {
	if !v.addr.IsValid() {
		return "unknown"
	}
	return v.addr.Addr().String()
}

// resolveVisitor walks from the peer to the visitor as far as trusted proxies tell the way.
func resolveVisitor(r *http.Request, trusted []netip.Prefix) visitor {
	v := visitor{proto: "http", host: r.Host}
	if r.TLS != nil {
		v.proto = "https"
	}
	peer, ok := parseAddrPort(r.RemoteAddr)
	if !ok {
		return v
	}
	v.addr, v.chain = peer, []netip.Addr{peer.Addr()}
	isTrusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if !isTrusted(peer.Addr()) {
		return v
	}
	v.trusted = true
	entries := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, e := range slices.Backward(entries) {
		a, ok := parseAddrPort(strings.TrimSpace(e))
		if !ok {
			break // what is left of it cannot be believed
		}
		v.addr = a
		v.chain = append(v.chain, a.Addr())
		if !isTrusted(a.Addr()) {
			break
		}
	}
	slices.Reverse(v.chain)
	if p := strings.ToLower(lastValue(r.Header["X-Forwarded-Proto"])); p == "http" || p == "https" {
		v.proto = p
	}
	if h := lastValue(r.Header["X-Forwarded-Host"]); h != "" {
		v.host = h
	}
	return v
}

func lastValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	v := values[len(values)-1]
	return strings.TrimSpace(v[strings.LastIndexByte(v, ',')+1:])
}

// parseAddrPort reads an address with or without a port. IPv4 in IPv6 becomes IPv4, zones go:
// they mean nothing elsewhere.
func parseAddrPort(s string) (netip.AddrPort, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap), true
	}
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Unmap().WithZone(""), 0), true
}

func plain(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// setForwarded replaces what the visitor said about itself in h, which has lost its hop-by-hop
// headers already, by what the edge knows.
func (x *exchange) setForwarded(h http.Header) {
	v := &x.visitor
	for name := range h {
		if !suspect(name) {
			continue
		}
		// A trusted proxy may say more than we do (X-Forwarded-Port), but only in plain spelling.
		told := v.trusted && forwarding(name) && !strings.ContainsAny(name, "_.")
		if identity(name) || forwarding(name) && !told {
			delete(h, name)
		}
	}
	h.Set("X-Forwarded-Proto", v.proto)
	h.Set("X-Forwarded-Host", v.host)
	elements := make([]string, 0, max(1, len(v.chain)))
	if v.addr.IsValid() {
		addrs := make([]string, len(v.chain))
		for i, a := range v.chain {
			addrs[i] = a.String()
			elements = append(elements, "for="+forwardedNode(a))
		}
		h.Set("X-Forwarded-For", strings.Join(addrs, ", "))
		h.Set("X-Real-Ip", v.addr.Addr().String())
	} else {
		// net/http would not add X-Forwarded-For here, but a trusted peer's might have stayed.
		h.Del("X-Forwarded-For")
		h.Del("X-Real-Ip")
		elements = append(elements, "for=unknown")
	}
	elements[0] += ";host=" + quoted(v.host) + ";proto=" + v.proto
	h.Set("Forwarded", strings.Join(elements, ", "))
	via := strconv.Itoa(x.in.ProtoMajor)
	if x.in.ProtoMajor == 1 {
		via += "." + strconv.Itoa(x.in.ProtoMinor)
	}
	via += " " + hopName
	if prior := h["Via"]; len(prior) > 0 {
		via = strings.Join(prior, ", ") + ", " + via
	}
	h.Set("Via", via)
}

func forwardedNode(a netip.Addr) string {
	if a.Is6() {
		return `"[` + a.String() + `]"`
	}
	return a.String()
}

var quotes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quoted is s as a quoted-string, which a host with a port needs.
func quoted(s string) string { return `"` + quotes.Replace(s) + `"` }
