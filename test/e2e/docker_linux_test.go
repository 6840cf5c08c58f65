package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/netlab"
	"github.com/adit-dev/adit/test/stack"
)

// dockerd is a Docker daemon of the test.
type dockerd struct {
	t      *testing.T
	dir    string
	socket string
	args   []string
	*stack.Process
}

// startDocker starts a daemon in the namespace of the test and gives it the image "web".
func startDocker(t *testing.T) *dockerd {
	t.Helper()
	path := need.Program(t, "dockerd", "docker")
	// Paths of sockets are short.
	dir, err := os.MkdirTemp("", "adit-docker-") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &dockerd{t: t, dir: dir, socket: filepath.Join(dir, "docker.sock")}
	d.args = []string{"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"-H", "unix://" + d.socket, "--iptables=false", "--ip-masq=false", "--bip", "10.88.0.1/24", "--exec-opt", "native.cgroupdriver=cgroupfs"}
	d.start(path[0])
	web := filepath.Join(dir, "web")
	build := exec.Command("go", "build", "-trimpath", "-o", web, "./testdata/web")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := exec.Command("sh", "-c", fmt.Sprintf("tar -C %s -c web | docker -H unix://%s import - web", dir, d.socket))
	if out, err := image.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return d
}

func (d *dockerd) start(path string) {
	d.t.Helper()
	d.Process = stack.Start(d.t, stack.Command{Name: "dockerd", Path: path, Args: d.args, Grace: 40 * time.Second})
	stack.Eventually(d.t, 60*time.Second, func() error {
		if !d.Alive() {
			d.t.Fatalf("dockerd ended:\n%s", d.Log())
		}
		out, err := exec.Command("docker", "-H", "unix://"+d.socket, "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

func (d *dockerd) do(args ...string) string {
	d.t.Helper()
	out, err := exec.Command("docker", append([]string{"-H", "unix://" + d.socket}, args...)...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// run starts a container of the image and ends it with the test.
func (d *dockerd) run(name string, args ...string) {
	d.t.Helper()
	d.do(slices.Concat([]string{"run", "-d", "--name", name}, args, []string{"web", "/web", name})...)
}

// TestDocker: an agent finds the services of a real Docker daemon and serves what their labels
// declare, as containers come, go and change; without the daemon it goes on with what it knows.
func TestDocker(t *testing.T) {
	t.Parallel() // it mostly waits
	if !netlab.Inside(t) {
		return
	}
	d := startDocker(t)
	t.Cleanup(func() {
		if d.Alive() {
			for _, id := range strings.Fields(d.do("ps", "-aq")) {
				d.do("rm", "-f", id)
			}
		}
	})
	s := stack.StartServer(t, stack.ServerConfig{})
	port := freeport.One(t)
	inv := s.Invite("home", "--hostname", "*.localhost", "--tcp-port", fmt.Sprint(port))
	published := freeport.One(t)
	d.run("shop", "-p", fmt.Sprintf("127.0.0.1:%d:8080", published), "-l", "com.docker.compose.project=corner", "-l", "com.docker.compose.service=till")
	d.run("inner", "--expose", "8080")
	d.run("secret", "--expose", "8080", "-l", "adit.dev/expose=denied")
	d.run("app", "-l", "adit.dev/hostname=app.localhost", "-l", "adit.dev/port=8080", "-l", "adit.dev/access=public")
	d.run("bad", "--expose", "8080", "-l", "adit.dev/hostname=bad host", "-l", "adit.dev/access=public")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Args: []string{"--discovery", "docker", "--docker-socket", d.socket}})

	type service struct {
		ID, Namespace, Name, Origin, Readiness string
		ExposedBy                              []string `json:"exposed_by"`
	}
	state := ""
	list := func() map[string]service {
		var v struct {
			Providers []struct{ State, Detail string }
			Services  []service
		}
		s.CLI("agents", "services", "home").JSON(t, &v)
		out := map[string]service{}
		for _, x := range v.Services {
			out[x.ID] = x
		}
		if len(v.Providers) > 0 {
			state = v.Providers[0].State
		}
		return out
	}
	listed := func(id string, want func(service, bool) error) {
		t.Helper()
		stack.Eventually(t, 30*time.Second, func() error {
			got := list()
			x, ok := got[id]
			if err := want(x, ok); err != nil {
				return fmt.Errorf("%s: %w in %v", id, err, got)
			}
			return nil
		})
	}
	is := func(want service) func(service, bool) error {
		return func(x service, _ bool) error {
			if x.Namespace != want.Namespace || x.Name != want.Name || x.Readiness != want.Readiness || !strings.HasPrefix(x.Origin, want.Origin) {
				return fmt.Errorf("want %v", want)
			}
			return nil
		}
	}
	listed("docker/corner/shop/8080/tcp", is(service{Namespace: "corner", Name: "till", Readiness: "ready", Origin: fmt.Sprintf("http://127.0.0.1:%d", published)}))
	listed("docker//inner/8080/tcp", is(service{Name: "inner", Readiness: "ready", Origin: "http://10.88.0."}))
	if _, there := list()["docker//secret/8080/tcp"]; there {
		t.Error("a container whose label denies it is listed")
	}
	c := s.Client("h1")
	answers := func(host, want string) {
		t.Helper()
		stack.Eventually(t, 30*time.Second, func() error {
			if got, err := getOK(c, s.URL(host, "/")); err != nil || got != want {
				return fmt.Errorf("%s: %q %v", host, got, err)
			}
			return nil
		})
	}
	t.Run("labels declare a tunnel", func(t *testing.T) {
		answers("app.localhost", "app")
		listed("docker//app/8080/tcp", func(x service, _ bool) error {
			if len(x.ExposedBy) != 1 {
				return fmt.Errorf("exposed by %v", x.ExposedBy)
			}
			return nil
		})
	})
	t.Run("labels that cannot be served are named and harm no other", func(t *testing.T) {
		a.WaitLog(10*time.Second, "the labels of a service declare no tunnel", "docker//bad/8080/tcp", "hostname", "bad host")
	})
	t.Run("a container that is made anew keeps its tunnel", func(t *testing.T) {
		d.do("rm", "-f", "app")
		listed("docker//app/8080/tcp", func(_ service, there bool) error {
			if there {
				return fmt.Errorf("still there")
			}
			return nil
		})
		d.run("filler", "--expose", "8080") // takes the address that the old one had
		d.run("app", "-l", "adit.dev/hostname=app.localhost", "-l", "adit.dev/port=8080", "-l", "adit.dev/access=public")
		answers("app.localhost", "app")
	})
	t.Run("a raw port by labels", func(t *testing.T) {
		d.run("raw", "-l", "adit.dev/kind=tcp", "-l", "adit.dev/port=8080", "-l", fmt.Sprintf("adit.dev/listen-port=%d", port))
		stack.Eventually(t, 30*time.Second, func() error {
			if got, err := getOK(c, fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil || got != "raw" {
				return fmt.Errorf("%q %v", got, err)
			}
			return nil
		})
	})
	t.Run("a second container of the same host name is told of, and takes over", func(t *testing.T) {
		d.run("twin", "-l", "adit.dev/hostname=app.localhost", "-l", "adit.dev/port=8080", "-l", "adit.dev/access=public")
		a.WaitLog(20*time.Second, "docker//twin/8080/tcp", "is declared by docker//app/8080/tcp already")
		d.do("rm", "-f", "app")
		answers("app.localhost", "twin")
	})
	t.Run("what stops listening is not ready", func(t *testing.T) {
		d.do("pause", "inner")
		d.do("unpause", "inner")
		d.do("stop", "-t", "1", "shop")
		listed("docker/corner/shop/8080/tcp", func(_ service, there bool) error {
			if there {
				return fmt.Errorf("still there")
			}
			return nil
		})
	})
	t.Run("without the daemon the rest goes on", func(t *testing.T) {
		for _, id := range strings.Fields(d.do("ps", "-aq")) {
			d.do("rm", "-f", id)
		}
		d.run("app", "-l", "adit.dev/hostname=app.localhost", "-l", "adit.dev/port=8080", "-l", "adit.dev/access=public")
		answers("app.localhost", "app")
		d.Terminate()
		d.Wait(40 * time.Second)
		stack.Eventually(t, 30*time.Second, func() error {
			if list(); state != "unavailable" {
				return fmt.Errorf("state %s", state)
			}
			return nil
		})
		if _, there := list()["docker//app/8080/tcp"]; !there {
			t.Error("what was known is gone")
		}
		d.start(need.Program(t, "dockerd")[0])
		stack.Eventually(t, 30*time.Second, func() error {
			if list(); state != "ok" {
				return fmt.Errorf("state %s", state)
			}
			return nil
		})
	})
}
