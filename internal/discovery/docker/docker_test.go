package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func running(id, name string, ports ...port) container {
	c := container{ID: id, Names: []string{"/" + name}, State: "running", Ports: ports, Labels: map[string]string{}}
	c.NetworkSettings.Networks = map[string]network{"bridge": {IPAddress: "10.88.0.2"}}
	return c
}

// TestAddresses: which addresses of a port are tried, and in which order.
func TestAddresses(t *testing.T) {
	tcp := func(ip string, public uint16) port {
		return port{IP: ip, PrivatePort: 80, PublicPort: public, Type: "tcp"}
	}
	shared := running("aa", "web", tcp("0.0.0.0", 8080))
	shared.NetworkSettings.Networks = map[string]network{"shop": {IPAddress: "10.9.0.3", GlobalIPv6Address: "fd00::3"}}
	host := running("bb", "web", tcp("", 0))
	host.HostConfig.NetworkMode = "host"
	for _, c := range []struct {
		name   string
		c      container
		inside bool
		want   string
	}{
		{"published on all addresses", running("aa", "web", tcp("0.0.0.0", 8080)), false, "127.0.0.1:8080 published_port, 10.88.0.2:80 container_ip"},
		{"published on all of IPv6", running("aa", "web", tcp("::", 8080)), false, "[::1]:8080 published_port, 10.88.0.2:80 container_ip"},
		{"published on one", running("aa", "web", tcp("192.0.2.7", 8080)), false, "192.0.2.7:8080 published_port, 10.88.0.2:80 container_ip"},
		{"IPv4 of both families", running("aa", "web", tcp("::", 8081), tcp("0.0.0.0", 8080)), false, "127.0.0.1:8080 published_port, 10.88.0.2:80 container_ip"},
		{"not published", running("aa", "web", tcp("", 0)), false, "10.88.0.2:80 container_ip"},
		{"from a container, by its name", shared, true, "web:80 container_name, 10.9.0.3:80 container_ip, [fd00::3]:80 container_ip"},
		{"from a container, no name on the network called bridge", running("aa", "web", tcp("", 0)), true, "10.88.0.2:80 container_ip"},
		{"the host's own network", host, false, "127.0.0.1:80 published_port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, a := range addresses(&c.c, portsOf(&c.c, labelsOf(nil))[0], c.inside) {
				got = append(got, a.String()+" "+a.source)
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("got %s\nwant %s", s, c.want)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	tcp := func(n uint16) port { return port{PrivatePort: n, Type: "tcp"} }
	denied, hle, stopped := running("d1", "denied", tcp(80)), running("d2", "hle", tcp(80)), running("d3", "stopped", tcp(80))
	denied.Labels["adit.dev/expose"], hle.Labels["hle.world/expose"], stopped.State = "denied", "denied", "exited"
	named := running("d4", "named")
	named.Labels["adit.dev/port"] = "9000"
	list := []container{
		running("d0", "web", tcp(443), tcp(80), tcp(80), port{PrivatePort: 53, Type: "udp"}, port{PrivatePort: 9, Type: "sctp"}),
		denied, hle, stopped, named, running("feedbeef", "agent", tcp(9091)), running("d5", "skipped", tcp(9100)),
	}
	p := New(Config{Self: "feed", ExcludePorts: []uint16{9100}})
	var got []string
	for _, c := range p.candidates(list) {
		got = append(got, fmt.Sprint(nameOf(c.c), " ", c.port, "/", c.protocol))
	}
	if want := []string{"web 80/tcp", "web 443/tcp", "web 53/udp", "named 9000/tcp"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDeclaration(t *testing.T) {
	web := []port{{PrivatePort: 80, Type: "tcp"}}
	both := []port{{PrivatePort: 80, Type: "tcp"}, {PrivatePort: 8443, Type: "tcp"}}
	for _, c := range []struct {
		name    string
		labels  string
		ports   []port
		origin  string
		list    string
		want    map[string]any
		problem string
	}{
		{"nothing", "expose=yes", web, "http://10.0.0.1:80", "", nil, ""},
		{"a host name", "hostname=a.example.com", web, "http://10.0.0.1:80", "services", map[string]any{"hostname": "a.example.com", "tls_mode": "terminate", "origin": "http://10.0.0.1:80"}, ""},
		{"with access", "hostname=a.example.com access=public kind=http", web, "http://10.0.0.1:80", "services", map[string]any{"hostname": "a.example.com", "tls_mode": "terminate", "origin": "http://10.0.0.1:80", "access": "public"}, ""},
		{"passthrough", "hostname=a.example.com kind=tls", web, "https://10.0.0.1:80", "services", map[string]any{"hostname": "a.example.com", "tls_mode": "passthrough", "origin": "10.0.0.1:80"}, ""},
		{"a raw port", "kind=tcp listen-port=2222", web, "tcp://10.0.0.1:80", "tcp_services", map[string]any{"listen_port": 2222, "name": "web", "origin": "10.0.0.1:80"}, ""},
		{"a raw port with a name", "kind=tcp listen-port=2222 name=ssh", web, "tcp://10.0.0.1:80", "tcp_services", map[string]any{"listen_port": 2222, "name": "ssh", "origin": "10.0.0.1:80"}, ""},
		{"another port is meant", "hostname=a.example.com port=8443", both, "http://10.0.0.1:80", "", nil, ""},
		{"two ports", "hostname=a.example.com", both, "http://10.0.0.1:80", "", nil, "80, 8443"},
		{"an odd port", "hostname=a.example.com port=http", web, "http://10.0.0.1:80", "", nil, `adit.dev/port "http" is not a port`},
		{"an odd public port", "kind=tcp listen-port=ssh", web, "tcp://10.0.0.1:80", "", nil, `listen-port "ssh" is not a port`},
		{"an unknown label", "hostname=a.example.com acess=public", web, "http://10.0.0.1:80", "", nil, `"adit.dev/acess" is not known`},
		{"what does not go together", "hostname=a.example.com kind=tcp", web, "http://10.0.0.1:80", "", nil, "do not go together"},
		{"no address", "hostname=a.example.com", web, "", "", nil, "no address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			one := running("aa", "web", c.ports...)
			for _, kv := range strings.Fields(c.labels) {
				k, v, _ := strings.Cut(kv, "=")
				one.Labels[prefix+k] = v
			}
			l := labelsOf(one.Labels)
			d := l.declaration(&candidate{c: &one, labels: l, port: 80, protocol: "tcp"}, c.origin)
			if c.problem != "" {
				if d == nil || !strings.Contains(d.Problem, c.problem) || !strings.Contains(d.Problem, `container "web"`) {
					t.Errorf("got %+v, want a problem with %q", d, c.problem)
				}
				return
			}
			if c.want == nil {
				if d != nil {
					t.Errorf("got %+v, want none", d)
				}
				return
			}
			if d == nil || d.List != c.list || !reflect.DeepEqual(d.Entry, c.want) {
				t.Errorf("got %+v, want %s %v", d, c.list, c.want)
			}
		})
	}
}

func TestSelf(t *testing.T) {
	id := strings.Repeat("0a1b", 16)
	mounts := "712 702 254:1 /var/lib/docker/containers/" + id + "/hosts /etc/hosts rw,relatime - ext4 /dev/vda1 rw\n"
	for _, c := range []struct{ mounts, host, want string }{
		{mounts, "web", id}, {"", "0a1b2c3d4e5f", "0a1b2c3d4e5f"}, {"", "home-server", ""}, {"", "server", ""},
	} {
		if got := selfOf([]byte(c.mounts), c.host); got != c.want {
			t.Errorf("%q %q: %q, want %q", c.mounts, c.host, got, c.want)
		}
	}
}

// sink keeps what a provider tells.
type sink struct {
	mu       sync.Mutex
	services map[string]*hubv1.DiscoveredService
	declared map[string]*discovery.Declaration
	state    string
	detail   string
}

func newSink() *sink {
	return &sink{services: map[string]*hubv1.DiscoveredService{}, declared: map[string]*discovery.Declaration{}}
}

func (s *sink) Put(d *hubv1.DiscoveredService) { s.do(func() { s.services[d.GetId()] = d }) }
func (s *sink) Delete(id string)               { s.do(func() { delete(s.services, id) }) }
func (s *sink) State(state, detail string)     { s.do(func() { s.state, s.detail = state, detail }) }
func (s *sink) Declare(id string, d *discovery.Declaration) {
	s.do(func() {
		if s.declared[id] = d; d == nil {
			delete(s.declared, id)
		}
	})
}

func (s *sink) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *sink) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		ok := f()
		s.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s: %v %v %s %s", what, slices.Collect(maps.Keys(s.services)), s.declared, s.state, s.detail)
		}
	}
}

// socketServer answers at a socket as Docker does, with faults that a real one does not show.
func socketServer(t *testing.T, h http.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "adit-") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return path
}

func start(t *testing.T, cfg Config) *sink {
	t.Helper()
	s := newSink()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); New(cfg).Run(ctx, s) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// TestFaults: a daemon that is missing, refuses, talks nonsense or goes away is shown; what was
// known stays.
func TestFaults(t *testing.T) {
	t.Run("no socket", func(t *testing.T) {
		none := filepath.Join(t.TempDir(), "none")
		s := start(t, Config{Socket: none})
		s.until(t, "off", func() bool { return s.state == discovery.Off && strings.Contains(s.detail, none) })
		s = start(t, Config{Socket: none, Wanted: true})
		s.until(t, "unavailable", func() bool { return s.state == discovery.Unavailable && strings.Contains(s.detail, none) })
	})
	t.Run("an error", func(t *testing.T) {
		s := start(t, Config{Socket: socketServer(t, http.NotFoundHandler())})
		s.until(t, "unavailable", func() bool { return s.state == discovery.Unavailable && strings.Contains(s.detail, "404") })
	})
	t.Run("nonsense, then a list, then nothing", func(t *testing.T) {
		var mu sync.Mutex
		answer := "not JSON"
		events := make(chan string, 1)
		gone := make(chan struct{})
		origin, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = origin.Close() }()
		_, at, _ := net.SplitHostPort(origin.Addr().String())
		m := http.NewServeMux()
		m.HandleFunc("/containers/json", func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprint(w, answer)
		})
		m.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			for {
				select {
				case e := <-events:
					fmt.Fprintln(w, e)
					_ = http.NewResponseController(w).Flush()
				case <-gone:
					return
				case <-r.Context().Done():
					return
				}
			}
		})
		s := start(t, Config{Socket: socketServer(t, m)})
		s.until(t, "nonsense", func() bool { return s.state == discovery.Unavailable && strings.Contains(s.detail, "not understood") })
		one := running("aa", "web")
		one.HostConfig.NetworkMode = "host"
		one.Labels["adit.dev/port"], one.Labels["adit.dev/kind"], one.Labels["adit.dev/listen-port"], one.Labels["adit.dev/protocol"] = at, "tcp", "2222", "tcp"
		text, err := json.Marshal([]container{one})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		answer = string(text)
		mu.Unlock()
		id := "docker//web/" + at + "/tcp"
		s.until(t, "the service", func() bool {
			x := s.services[id]
			return s.state == discovery.OK && x != nil && x.GetReadiness() == "ready" && x.GetKind() == wirev1.Kind_KIND_TCP && x.GetOrigin() == "tcp://127.0.0.1:"+at && s.declared[id] != nil
		})
		close(gone)
		s.until(t, "unavailable", func() bool { return s.state == discovery.Unavailable })
		s.do(func() {
			if s.services[id] == nil || s.declared[id] == nil {
				t.Error("what was known is gone")
			}
		})
	})
}

func FuzzContainers(f *testing.F) {
	f.Add([]byte(`[{"Id":"aa","Names":["/web"],"State":"running","Ports":[{"IP":"::","PrivatePort":80,"PublicPort":8080,"Type":"tcp"}],"Labels":{"adit.dev/hostname":"a.example.com"},"NetworkSettings":{"Networks":{"x":{"IPAddress":"10.0.0.1"}}}}]`))
	f.Add([]byte(`[{"Id":"","Names":["/a/b",""],"State":"running","Ports":[{"Type":"udp"}],"HostConfig":{"NetworkMode":"host"}}]`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseContainers(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		p := New(Config{Self: "feed"})
		for _, c := range p.candidates(list) {
			s := c.service(reached{}, false)
			if s.GetId() == "" || s.GetPort() == 0 {
				t.Errorf("service %v", s)
			}
			if d := c.labels.declaration(&c, s.GetOrigin()); d != nil && (d.Problem == "") == (d.Entry == nil) {
				t.Errorf("declaration %+v", d)
			}
		}
	})
}
