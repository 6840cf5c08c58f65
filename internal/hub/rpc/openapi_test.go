package rpc

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOpenAPI(t *testing.T) {
	s := start(t)
	rec := httptest.NewRecorder()
	s.api.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/openapi.json", nil))
	if rec.Code != 200 || rec.Header().Get("Content-Type") != "application/json" {
		t.Fatal(rec.Code, rec.Header())
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]any
		Components map[string]map[string]any
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatal(doc.OpenAPI, err)
	}
	for procedure, w := range access {
		if _, there := doc.Paths[procedure]; there == (len(w.machines) > 0) {
			t.Errorf("%s: in the document: %v; run make generate", procedure, there)
		}
		if call, _ := doc.Paths[procedure]["post"].(map[string]any); call != nil && (call["security"] != nil) != w.open {
			t.Errorf("%s: needs a key: %v", procedure, !w.open)
		}
	}
	if len(doc.Paths) == 0 {
		t.Fatal("no paths")
	}
	// Every reference leads somewhere.
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if r, ok := v["$ref"].(string); ok {
				kind, name, _ := strings.Cut(strings.TrimPrefix(r, "#/components/"), "/")
				if doc.Components[kind][name] == nil {
					t.Errorf("%s refers to %s, which is not there", at, r)
				}
			}
			for k, x := range v {
				walk(at+"/"+k, x)
			}
		case []any:
			for _, x := range v {
				walk(at, x)
			}
		}
	}
	var whole any
	_ = json.Unmarshal(rec.Body.Bytes(), &whole)
	walk("", whole)
}

func TestJSONBadInput(t *testing.T) {
	s := start(t)
	for body, want := range map[string]string{
		`{"pageSise": 5}`:   "pageSise",
		`{"pageSize": "x"}`: "pageSize",
		``:                  "send a JSON object",
		`{`:                 "unexpected",
	} {
		req := httptest.NewRequest("POST", "/adit.hub.v1.TunnelService/ListTunnels", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+s.adminKey())
		req.RemoteAddr = "127.0.0.1:1"
		rec := httptest.NewRecorder()
		s.api.Handler().ServeHTTP(rec, req)
		if rec.Code != 400 || !strings.Contains(rec.Body.String(), want) || !strings.Contains(rec.Body.String(), `"invalid_argument"`) {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
}
