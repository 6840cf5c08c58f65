package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

const guide = "docs/guides/getting-started.md"

// blocks returns the fenced blocks of one language of the guide.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	return blocksOf(t, guide, language)
}

// blocksOf returns those of a page.
func blocksOf(t *testing.T, page, language string) []string {
	t.Helper()
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(readTree(t, page), -1) {
		out = append(out, m[1])
	}
	if len(out) == 0 {
		t.Fatalf("%s has no %s blocks", page, language)
	}
	return out
}

// TestGuide follows the guide: every shell block, in order, on a machine of its own made of namespaces, where
// systemd is played by a script and the domain is one that the internal CA serves.
func TestGuide(t *testing.T) {
	need.Linux(t, "namespaces stand for a machine")
	need.RootUser(t, "to make namespaces with an /etc of their own")
	need.Kernel(t, need.NetNamespaces)
	need.Kernel(t, need.Mounts)
	bash := need.Program(t, "bash", "curl", "ip", "mount")[0]
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(filepath.Join(work, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{stack.Binary(t): "bin/adit", filepath.Join(need.Root(), "deploy"): "deploy"} {
		if err := os.Symlink(from, filepath.Join(work, to)); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	for _, b := range blocks(t, "sh") {
		script.WriteString(b + "\n")
	}
	text := strings.ReplaceAll(script.String(), "example.com", "example.test")
	writeFile(t, filepath.Join(dir, "guide.sh"), "set -euxo pipefail\n"+text)

	cmd := exec.CommandContext(t.Context(), bash, filepath.Join(need.Root(), "test/e2e/testdata/machine.sh"), dir)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "ORIGIN="+os.Args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"the service at home", "app.example.test", "ssh says SSH-2.0-home"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the guide's run does not show %q:\n%s", want, out)
		}
	}
}

// homeOrigins is what the test binary is inside the machine: the services at home.
func homeOrigins() {
	l, err := net.Listen("tcp", "127.0.0.1:22")
	if err == nil {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "SSH-2.0-home\r\n")
				c.Close()
			}
		}()
		err = http.ListenAndServe("127.0.0.1:3000", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "the service at home")
		}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestGuideBehindNginx runs the guide's settings and its nginx block with the ports of a test.
func TestGuideBehindNginx(t *testing.T) {
	path := need.Program(t, "nginx")[0]
	module := ""
	for _, p := range []string{"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules"} {
		if f := filepath.Join(p, "ngx_stream_module.so"); fileExists(f) {
			module = "load_module " + f + ";"
		}
	}
	if v, _ := exec.Command(path, "-V").CombinedOutput(); module == "" && !regexp.MustCompile(`--with-stream( |$)`).Match(v) {
		need.Skip(t, "needs nginx's stream module")
	}
	front, behind := freeport.One(t), freeport.One(t)
	ports := strings.NewReplacer("0.0.0.0:443", loopback(front), "0.0.0.0:8443", loopback(behind), "127.0.0.1:8443", loopback(behind),
		"hub.example.com:443,hub.example.com:8443", fmt.Sprint("hub.localhost:", front), "domain: example.com", "domain: localhost", "acme-email: admin@example.com\n", "")
	dir := t.TempDir()
	conf := fmt.Sprintf("%s\ndaemon off;\npid %s/pid;\nerror_log stderr;\nevents {}\n%s", module, dir, ports.Replace(blocks(t, "nginx")[0]))
	file := filepath.Join(dir, "nginx.conf")
	writeFile(t, file, conf)
	stack.Start(t, stack.Command{Name: "nginx", Path: path, Args: []string{"-c", file, "-p", dir, "-e", "stderr"}})

	settings := filepath.Join(dir, "server.yaml")
	writeFile(t, settings, ports.Replace(blocks(t, "yaml")[0]))
	s := stack.StartServer(t, stack.ServerConfig{HTTPS: loopback(behind), Args: []string{"--config", settings}})
	inv := s.Invite("behind", "--hostname", "app.localhost")
	// Through the front program, as where only 443 is open: over TCP, with a PROXY header before it.
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", "http://"+serveHTTP(t, app(), false))}})
	s.WaitOnline(1, "app.localhost")
	got, err := getOK(s.Client(), fmt.Sprintf("https://app.localhost:%d/hello", front))
	if err != nil || !strings.Contains(got, "from 127.0.0.1") {
		t.Errorf("through nginx: %q %v", got, err)
	}
}

// TestGuideTraefik reads the Traefik block; Traefik itself is not among the tests' programs.
func TestGuideTraefik(t *testing.T) {
	all := blocks(t, "yaml")
	var conf struct {
		TCP struct {
			Routers map[string]struct {
				Rule, Service string
				TLS           struct{ Passthrough bool }
			}
			Services map[string]any
		}
	}
	if err := yaml.Unmarshal([]byte(all[len(all)-1]), &conf); err != nil {
		t.Fatal(err)
	}
	r := conf.TCP.Routers["adit"]
	if !r.TLS.Passthrough || conf.TCP.Services[r.Service] == nil || !strings.Contains(r.Rule, "HostSNI(`hub.example.com`)") {
		t.Errorf("%+v", conf)
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
