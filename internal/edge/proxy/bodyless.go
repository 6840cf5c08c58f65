package proxy

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"sync"
)

// bodyless reports whether a request asks for an answer and nothing else: no body, no upgrade, no
// 100 (Continue). Sending it twice does no harm. Most requests are of this kind, and forwardBodyless
// costs them half of what httputil.ReverseProxy would, which is for the others.
func bodyless(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
	default:
		return false
	}
	return (r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0) &&
		len(r.Header["Upgrade"]) == 0 && len(r.Header["Expect"]) == 0 && len(r.Trailer) == 0
}

// forwardBodyless carries such a request to the origin and the answer back.
func (x *exchange) forwardBodyless() {
	out := x.in.WithContext(x.in.Context())
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
	out.RequestURI, out.Close, out.Form, out.PostForm = "", false, nil, nil
	out.Header = onward(x.in.Header)
	x.rewrite(&httputil.ProxyRequest{In: x.in, Out: out})
	x.interim.to = x.w
	res, err := x.p.pool.roundTrip(x, out)
	x.interim.end()
	if err != nil {
		x.fail(x.explain(err))
		return
	}
	defer func() { _ = res.Body.Close() }() // after the trailers it has been closed already
	dropHops(res.Header)
	if err := x.answered(res); err != nil {
		x.fail(x.explain(err))
		return
	}
	h := x.w.Header()
	for name, values := range res.Header {
		if len(h[name]) > 0 {
			values = append(h[name], values...)
		}
		h[name] = values
	}
	announced := len(res.Trailer)
	for name := range res.Trailer {
		h.Add("Trailer", name)
	}
	x.w.WriteHeader(res.StatusCode)
	if x.copyAnswer(res) != nil {
		panic(http.ErrAbortHandler) // the visitor must not take it for a whole answer
	}
	_ = res.Body.Close() // fills in the trailers
	x.trailers(res.Trailer, announced)
}

// copyAnswer copies the body. Each piece is delivered at once, or before the next is waited for.
func (x *exchange) copyAnswer(res *http.Response) error {
	if res.Body == http.NoBody {
		return nil
	}
	_ = x.w.FlushError() // the next write tells
	buf := x.p.buffers.Get()
	defer x.p.buffers.Put(buf)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, werr := x.w.Write(buf[:n]); werr != nil {
				return werr
			}
			_ = x.w.FlushError() // as above
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// trailers sends those of the answer; announced of them were named in its header.
func (x *exchange) trailers(t http.Header, announced int) {
	if len(t) == 0 {
		return
	}
	// Now, or a short body would get a Content-Length, and no trailers.
	_ = x.w.FlushError()
	prefix := ""
	if len(t) != announced {
		prefix = http.TrailerPrefix
	}
	h := x.w.Header()
	for name, values := range t {
		h[prefix+name] = append(h[prefix+name], values...)
	}
}

// hops are the headers of one hop. Connection may name more.
var hops = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func dropHops(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hops {
		delete(h, name)
	}
}

// onward is a copy of a visitor's header without what is of its hop.
func onward(in http.Header) http.Header {
	h := make(http.Header, len(in)+6)
	for name, values := range in {
		h[name] = slices.Clip(values) // shared: nobody changes a value in its place
	}
	trailers := false
	for _, v := range in["Te"] {
		for t := range strings.SplitSeq(v, ",") {
			trailers = trailers || strings.EqualFold(textproto.TrimString(t), "trailers")
		}
	}
	dropHops(h)
	if trailers {
		h["Te"] = []string{"trailers"}
	}
	if len(h["User-Agent"]) == 0 {
		h["User-Agent"] = []string{""} // else net/http would send its own
	}
	return h
}

// interim passes 1xx answers on while the final one is waited for. A transport may come with one
// after it gave up.
type interim struct {
	to   *writer // nil: nobody waits here
	mu   sync.Mutex
	over bool
}

func (i *interim) pass(status int, header textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	h := i.to.Header()
	for name, values := range header {
		h[name] = append(h[name], values...)
	}
	i.to.WriteHeader(status)
	clear(h) // they are not the final answer's
	return nil
}

func (i *interim) end() {
	i.mu.Lock()
	i.over = true
	i.mu.Unlock()
}
