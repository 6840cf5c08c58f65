// Package pages answers visitors when the edge itself must: an error page for browsers, JSON or
// a gRPC status for programs, always with the reason and the request's id.
package pages

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/adit-dev/adit/internal/reason"
)

//go:embed page.html
var source string

var page = template.Must(template.New("page").Parse(source))

// retryAfter is what 503 and 429 tell clients to wait, in seconds.
const retryAfter = 5

// Status is the HTTP status of e. A rule without a usable origin is the configuration's fault,
// not the origin's, so it is a 500.
func Status(e *reason.Error) int {
	if e.Code == reason.OriginUnresolved && e.Hop == reason.HopEdge {
		return http.StatusInternalServerError
	}
	return e.Code.HTTPStatus()
}

// Write answers r with err's reason. Headers already set on w are kept, but for those that
// describe a body.
func Write(w http.ResponseWriter, r *http.Request, requestID string, err *reason.Error) {
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Range", "Etag", "Last-Modified", "Trailer", "Set-Cookie", "Accept-Ranges"} {
		h.Del(name)
	}
	status := Status(err)
	h.Set("Adit-Error", string(err.Code))
	h.Set("Adit-Request-Id", requestID)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept")
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if IsGRPC(r.Header) {
		writeGRPC(h, w, r, requestID, err)
		return
	}
	body := render(h, r, status, requestID, err)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the visitor may be gone
	}
}

// IsGRPC reports whether a request with these headers is a gRPC call.
func IsGRPC(h http.Header) bool {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "application/grpc" || strings.HasPrefix(t, "application/grpc+")
}

// grpcCodes are gRPC's numbers for our statuses; what is not named is UNAVAILABLE (14).
var grpcCodes = map[int]int{
	400: 13, 401: 16, 403: 7, 404: 12, 408: 4, 413: 8, 421: 14, 429: 8, 500: 13, 504: 4, 508: 9,
}

// writeGRPC answers with headers only, which carry the status as trailers would.
func writeGRPC(h http.Header, w http.ResponseWriter, r *http.Request, requestID string, err *reason.Error) {
	code, ok := grpcCodes[Status(err)]
	if !ok {
		code = 14
	}
	h.Set("Content-Type", r.Header.Get("Content-Type"))
	h.Set("Grpc-Status", strconv.Itoa(code))
	h.Set("Grpc-Message", grpcMessage(fmt.Sprintf("%s: %s (request %s)", err.Code, textOf(err.Code).title, requestID)))
	w.WriteHeader(http.StatusOK)
}

// grpcMessage is s percent-encoded as grpc-message wants it.
func grpcMessage(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// render makes the body in the form that r accepts and sets its headers.
func render(h http.Header, r *http.Request, status int, requestID string, err *reason.Error) []byte {
	t := textOf(err.Code)
	switch preferred(r.Header.Values("Accept")) {
	case "application/json":
		h.Set("Content-Type", "application/json")
		b, _ := json.Marshal(map[string]any{ // strings and a number cannot fail
			"error": t.title, "code": err.Code, "hint": t.text, "status": status, "request_id": requestID,
		})
		return append(b, '\n')
	case "text/html":
		nonce := rand.Text()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		var b bytes.Buffer
		// The template is fixed and the buffer takes all: no error is possible.
		_ = page.Execute(&b, map[string]any{
			"Nonce": nonce, "Status": status, "StatusText": http.StatusText(status), "Title": t.title, "Text": t.text,
			"Reason": err.Code, "RequestID": requestID, "Hops": hops(err),
		})
		return b.Bytes()
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		return fmt.Appendf(nil, "%d %s: %s\n%s\nrequest %s\n", status, err.Code, t.title, t.text, requestID)
	}
}

type hop struct{ Name, Class string }

// hops is the way of the request up to where it failed; nil where that says nothing.
func hops(err *reason.Error) []hop {
	at := hopIndex[hopOf(err)]
	if at == 0 {
		return nil
	}
	var out []hop
	for i, name := range hopNames {
		switch {
		case i < at:
			out = append(out, hop{name, "ok"})
		case i == at:
			out = append(out, hop{name, "failed"})
		default:
			out = append(out, hop{name, ""})
		}
	}
	return out
}

// preferred is the form of an answer: HTML only for who asks for it by name, JSON likewise, the
// one with the higher quality first; plain text for all others, such as curl.
func preferred(accept []string) string {
	best, quality := "", 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		t, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		switch {
		case t == "application/xhtml+xml":
			t = "text/html"
		case strings.HasSuffix(t, "+json"):
			t = "application/json"
		}
		if t != "text/html" && t != "application/json" {
			continue
		}
		q := 1.0
		if v, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				continue
			}
		}
		if q > quality {
			best, quality = t, q
		}
	}
	return best
}
