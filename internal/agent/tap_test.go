package agent

import (
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// TestTap: a tap tells of what passes and never stops it.
func TestTap(t *testing.T) {
	svc := &service{declared: &hubv1.DeclaredTunnel{Name: "web"}}
	for _, c := range []struct {
		name     string
		kind     wirev1.Kind
		to, back []string
		want     []string
	}{
		{"two requests on one connection", wirev1.Kind_KIND_HTTP,
			[]string{"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", "POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"},
			[]string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
			[]string{"200 GET /a?b", "404 POST /c"}},
		{"HEAD has no body", wirev1.Kind_KIND_HTTP,
			[]string{"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
			[]string{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
			[]string{"200 HEAD /", "204 GET /"}},
		{"upgrade", wirev1.Kind_KIND_HTTP,
			[]string{"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "\x81\x00 frames"},
			[]string{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00 frames"},
			[]string{"101 GET /ws"}},
		{"HTTP/2 is told of once", wirev1.Kind_KIND_HTTP, []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00"}, []string{"\x00\x00\x00\x04"}, []string{"0  "}},
		{"garbage passes", wirev1.Kind_KIND_HTTP, []string{strings.Repeat("\x00garbage", 4096)}, []string{strings.Repeat("x", 1<<16)}, nil},
		{"not HTTP", wirev1.Kind_KIND_TCP, []string{"SSH-2.0-x\r\n"}, []string{"SSH-2.0-y\r\n"}, []string{"0  "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan Connection, 16)
			tp := newTap(func(c Connection) { got <- c }, &wirev1.StreamHeader{Kind: c.kind, VisitorAddress: "192.0.2.1:5"}, svc, nil, time.Millisecond)
			var to, back strings.Builder
			for i := range max(len(c.to), len(c.back)) {
				for _, side := range []struct {
					w    io.Writer
					text []string
				}{{tp.toOrigin(&to), c.to}, {tp.toVisitor(&back), c.back}} {
					if i < len(side.text) {
						if _, err := io.WriteString(side.w, side.text[i]); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			tp.close()
			close(got)
			if to.String() != strings.Join(c.to, "") || back.String() != strings.Join(c.back, "") {
				t.Error("the tap changed what passes")
			}
			var lines []string
			for l := range got {
				if l.Service != "web" || l.Visitor != "192.0.2.1:5" {
					t.Errorf("%+v", l)
				}
				lines = append(lines, strings.Join([]string{strconv.Itoa(l.Status), l.Method, l.Target}, " "))
			}
			if strings.Join(lines, "|") != strings.Join(c.want, "|") {
				t.Errorf("told %q, want %q", lines, c.want)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		var none *tap
		var b strings.Builder
		if none.toOrigin(&b) != io.Writer(&b) {
			t.Error("a nil tap wraps the writer")
		}
		none.close()
	})
}
