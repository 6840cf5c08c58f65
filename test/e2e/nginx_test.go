package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// nginx starts nginx in the foreground with a configuration of the http block.
func nginx(t *testing.T, block string) {
	t.Helper()
	path := need.Program(t, "nginx")[0]
	dir := t.TempDir()
	// Workers of a root-run nginx drop to another user, who must be able to read the folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	conf := fmt.Sprintf(`%s
daemon off;
pid %[2]s/pid;
error_log stderr;
worker_processes 1;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path %[2]s/body; proxy_temp_path %[2]s/proxy; fastcgi_temp_path %[2]s/fcgi;
  uwsgi_temp_path %[2]s/uwsgi; scgi_temp_path %[2]s/scgi;
  client_max_body_size 0;
  %[3]s
}
`, user, dir, strings.ReplaceAll(block, "DIR", dir))
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	stack.Start(t, stack.Command{Name: "nginx", Path: path, Args: []string{"-c", file, "-p", dir, "-e", "stderr"}})
}

func TestNginxOrigin(t *testing.T) {
	need.Program(t, "nginx")
	port, proxyPort := freeport.One(t), freeport.One(t)
	page := strings.Repeat("nginx behind Adit. ", 4096)
	nginx(t, fmt.Sprintf(`
  server {
    listen 127.0.0.1:%d;
    location = /page { return 200 "%s"; }
    location = /seen { return 200 "$http_host|$http_x_forwarded_proto|$http_x_forwarded_for|$request_method|$content_length"; }
  }
  server {
    listen 127.0.0.1:%d proxy_protocol;
    location / { return 200 "$proxy_protocol_addr|$http_x_forwarded_for"; }
  }`, port, page[:3000], proxyPort))
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("nginx.localhost", "http://"+loopback(port)),
		stack.HTTP("pp1.localhost", "http://"+loopback(proxyPort)).With("proxy_protocol", "v1"),
		stack.HTTP("pp2.localhost", "http://"+loopback(proxyPort)).With("proxy_protocol", "v2"),
	}})
	stack.Eventually(t, 5*time.Second, func() error {
		_, err := getOK(r.Client(), r.URL("nginx.localhost", "/page"))
		return err
	})
	for _, p := range []string{"h1", "h2"} {
		got, err := getOK(r.Client(p), r.URL("nginx.localhost", "/page"))
		if err != nil || got != page[:3000] {
			t.Errorf("%s: %d bytes, %v", p, len(got), err)
		}
	}
	got, err := getOK(r.Client(), r.URL("nginx.localhost", "/seen"))
	if want := "nginx.localhost:" + r.Port() + "|https|127.0.0.1|GET|"; err != nil || got != want {
		t.Errorf("nginx saw %q, want %q (%v)", got, want, err)
	}
	t.Run("I07 PROXY v1 and v2 reach nginx", func(t *testing.T) {
		for _, host := range []string{"pp1.localhost", "pp2.localhost"} {
			got, err := getOK(r.Client("h1"), r.URL(host, "/"))
			if err != nil || got != "127.0.0.1|127.0.0.1" {
				t.Errorf("%s: nginx saw %q, %v", host, got, err)
			}
		}
	})
}
