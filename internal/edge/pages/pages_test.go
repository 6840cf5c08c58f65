package pages

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/reason"
)

func write(method string, h http.Header, err *reason.Error) (*http.Response, string) {
	r := httptest.NewRequest(method, "/", nil)
	for k, v := range h {
		r.Header[k] = v
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Length", "7")
	w.Header().Set("X-Kept", "1")
	Write(w, r, "req1", err)
	res := w.Result()
	b, _ := io.ReadAll(res.Body)
	return res, string(b)
}

var visible = []reason.Code{
	reason.BadRequest, reason.AccessRequired, reason.AccessDenied, reason.OriginDenied, reason.NoRoute, reason.VisitorTimeout, reason.TooLarge,
	reason.WrongHost, reason.WrongEdge, reason.RateLimited, reason.Internal, reason.OriginRefused, reason.OriginUnresolved, reason.OriginTLS,
	reason.OriginProtocol, reason.NoAgent, reason.AgentDraining, reason.GateUnavailable, reason.OriginTimeout, reason.LoopDetected,
}

func TestForms(t *testing.T) {
	secret := "http://10.0.0.5:3000"
	for _, code := range visible {
		t.Run(string(code), func(t *testing.T) {
			e := reason.New(code, reason.HopOrigin, "dial %s", secret)
			if texts[code].title == "" || texts[code].text == "" {
				t.Fatal("no text")
			}
			for accept, ct := range map[string]string{
				"": "text/plain; charset=utf-8", "*/*": "text/plain; charset=utf-8", "application/json": "application/json",
				"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html; charset=utf-8",
				"text/html;q=0.5, application/json":                               "application/json", "application/problem+json": "application/json",
				"text/html;q=0": "text/plain; charset=utf-8", ";;;,x": "text/plain; charset=utf-8",
			} {
				res, body := write("GET", http.Header{"Accept": {accept}}, e)
				if res.Header.Get("Content-Type") != ct || res.StatusCode != code.HTTPStatus() || res.ContentLength != int64(len(body)) {
					t.Errorf("Accept %q: %d %v", accept, res.StatusCode, res.Header)
				}
				if res.Header.Get("Adit-Error") != string(code) || res.Header.Get("Adit-Request-Id") != "req1" ||
					res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("X-Kept") != "1" {
					t.Errorf("Accept %q: %v", accept, res.Header)
				}
				if !strings.Contains(body, "req1") || !strings.Contains(body, string(code)) || strings.Contains(body, "10.0.0.5") {
					t.Errorf("Accept %q: body %s", accept, body)
				}
			}
		})
	}
}

func TestJSON(t *testing.T) {
	_, body := write("GET", http.Header{"Accept": {"application/json"}}, reason.New(reason.NoAgent, reason.HopEdge, ""))
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got["code"] != "no_agent" || got["status"] != 503.0 || got["request_id"] != "req1" || got["error"] == "" || got["hint"] == "" {
		t.Errorf("%v", got)
	}
}

func TestHTML(t *testing.T) {
	res, body := write("GET", http.Header{"Accept": {"text/html"}}, reason.New(reason.OriginRefused, reason.HopOrigin, ""))
	csp := res.Header.Get("Content-Security-Policy")
	nonce := regexp.MustCompile(`nonce="([^"]+)"`).FindStringSubmatch(body)
	if nonce == nil || !strings.Contains(csp, "'nonce-"+nonce[1]+"'") || !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("CSP %q, nonce %v", csp, nonce)
	}
	if regexp.MustCompile(`(?i)https?://|src=|href=|url\(|<script|style="|@import`).MatchString(body) {
		t.Error("the page asks for something else")
	}
	if !strings.Contains(body, `class="failed">Service`) {
		t.Error("the page does not show the hop")
	}
	again, _ := write("GET", http.Header{"Accept": {"text/html"}}, reason.New(reason.OriginRefused, reason.HopOrigin, ""))
	if again.Header.Get("Content-Security-Policy") == csp {
		t.Error("the nonce is used twice")
	}
}

func TestHead(t *testing.T) {
	res, body := write("HEAD", http.Header{"Accept": {"text/html"}}, reason.New(reason.NoRoute, reason.HopEdge, ""))
	if body != "" || res.StatusCode != 404 || res.Header.Get("Content-Length") == "" {
		t.Errorf("%d %q %v", res.StatusCode, body, res.Header)
	}
}

func TestRetryAfter(t *testing.T) {
	for code, want := range map[reason.Code]bool{reason.NoAgent: true, reason.AgentDraining: true, reason.RateLimited: true, reason.NoRoute: false} {
		res, _ := write("GET", nil, reason.New(code, reason.HopEdge, ""))
		if got := res.Header.Get("Retry-After") != ""; got != want {
			t.Errorf("%s: Retry-After %v", code, got)
		}
	}
}

func TestGRPC(t *testing.T) {
	for _, ct := range []string{"application/grpc", "application/grpc+proto", "Application/gRPC; x=1"} {
		res, body := write("POST", http.Header{"Content-Type": {ct}}, reason.New(reason.NoAgent, reason.HopEdge, ""))
		if res.StatusCode != 200 || res.Header.Get("Grpc-Status") != "14" || !strings.Contains(res.Header.Get("Grpc-Message"), "no_agent") || body != "" {
			t.Errorf("%s: %d %v", ct, res.StatusCode, res.Header)
		}
	}
	if IsGRPC(http.Header{"Content-Type": {"application/grpc-web"}}) {
		t.Error("gRPC-web is not gRPC: browsers read it")
	}
	if got := grpcMessage("ä%\n"); got != "%C3%A4%25%0A" {
		t.Errorf("message %q", got)
	}
}

func TestStatus(t *testing.T) {
	if s := Status(reason.New(reason.OriginUnresolved, reason.HopEdge, "")); s != 500 {
		t.Errorf("a rule without an origin is %d", s)
	}
	if s := Status(reason.New(reason.OriginUnresolved, reason.HopOrigin, "")); s != 502 {
		t.Errorf("an origin whose name does not resolve is %d", s)
	}
}

func FuzzAccept(f *testing.F) {
	f.Add("text/html;q=0.5, application/json;q=NaN")
	f.Add("*/*,,;;q=1")
	f.Fuzz(func(t *testing.T, accept string) {
		switch got := preferred([]string{accept}); got {
		case "", "text/html", "application/json":
		default:
			t.Fatalf("%q", got)
		}
	})
}
