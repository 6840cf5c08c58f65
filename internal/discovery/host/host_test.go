package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func row(addr, state string, inode int) string {
	return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000  1000        0 %d 1 0000000000000000 100 0 0 10 0\n", addr, state, inode)
}

func TestParseTCP(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"loopback", head + row("0100007F:0BB8", "0A", 7), []string{"127.0.0.1:3000 7"}},
		{"wildcard", head + row("00000000:0016", "0A", 8), []string{"0.0.0.0:22 8"}},
		{"IPv6 loopback", head + row("00000000000000000000000001000000:1F90", "0A", 9), []string{"[::1]:8080 9"}},
		{"IPv6 wildcard", head + row("00000000000000000000000000000000:0050", "0A", 10), []string{"[::]:80 10"}},
		{"mapped", head + row("0000000000000000FFFF00000100007F:0050", "0A", 11), []string{"127.0.0.1:80 11"}},
		{"connections", head + row("0100007F:0BB8", "01", 7), nil},
		{"nonsense", "x\n0: zz:1 0 0A 0 0 0 0 0 0\n\n" + row("0100007F:0000", "0A", 7) + row("010007F:0BB8", "0A", 7), nil},
		{"nothing", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := parseTCP(strings.NewReader(c.text))
			var got []string
			for _, x := range l {
				got = append(got, fmt.Sprint(x.addr, " ", x.inode))
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func FuzzParseTCP(f *testing.F) {
	f.Add(head + row("0100007F:0BB8", "0A", 7))
	f.Add(row("00000000000000000000000001000000:1F90", "0A", 9))
	f.Fuzz(func(t *testing.T, text string) {
		l, _ := parseTCP(strings.NewReader(text))
		for _, x := range l {
			if !x.addr.IsValid() || x.addr.Port() == 0 || x.addr.Addr().Is4In6() {
				t.Errorf("%v", x)
			}
		}
	})
}

// told is a sink that keeps what it hears.
type told struct {
	mu       sync.Mutex
	services map[string]*hubv1.DiscoveredService
	state    string
	events   []string
}

func newTold() *told { return &told{services: map[string]*hubv1.DiscoveredService{}} }

func (x *told) Put(s *hubv1.DiscoveredService) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.services[s.GetId()] = s
	x.events = append(x.events, "put "+s.GetName())
}

func (x *told) Delete(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events = append(x.events, "delete "+x.services[id].GetName())
	delete(x.services, id)
}

func (x *told) Declare(string, *discovery.Declaration) {}

func (x *told) State(state, _ string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state = state
}

func (x *told) take() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.events
	x.events = nil
	slices.Sort(e)
	return e
}

// root is a made-up /proc.
type root struct {
	t   *testing.T
	dir string
}

func newRoot(t *testing.T) root {
	r := root{t, t.TempDir()}
	r.write("net/tcp", head)
	r.write("net/tcp6", head)
	return r
}

func (r root) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r root) process(pid int, name string, inodes ...int) {
	r.t.Helper()
	r.write(fmt.Sprintf("%d/comm", pid), name+"\n")
	for i, n := range inodes {
		fd := filepath.Join(r.dir, strconv.Itoa(pid), "fd", strconv.Itoa(i))
		_ = os.MkdirAll(filepath.Dir(fd), 0o755)
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", n), fd); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestLook(t *testing.T) {
	r := newRoot(t)
	r.process(10, "grafana", 1)
	r.process(11, "sshd", 2, 3)
	r.process(os.Getpid(), "adit", 4)
	r.write("net/tcp", head+row("0100007F:0BB8", "0A", 1)+row("00000000:0016", "0A", 2)+row("0100007F:2382", "0A", 4)+row("0100007F:1F91", "0A", 5))
	r.write("net/tcp6", head+row("00000000000000000000000000000000:0016", "0A", 3)+row("00000000000000000000000001000000:1F92", "0A", 6)+row("0100A8C0:0001", "0A", 9))
	asked := 0
	p := New(Config{Root: r.dir, ExcludePorts: []uint16{8081}, Sniff: func(context.Context, netip.AddrPort) string { asked++; return "http" }})
	x := newTold()
	look := func() {
		t.Helper()
		if err := p.look(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	look()
	if got, want := x.take(), []string{"put grafana", "put port-1", "put port-8082", "put sshd"}; !slices.Equal(got, want) {
		t.Fatalf("told %q, want %q", got, want)
	}
	if asked != 3 {
		t.Errorf("asked %d ports, want 3: sshd is known", asked)
	}
	for id, want := range map[string]string{
		"host//localhost/3000/tcp": "http://127.0.0.1:3000", "host//localhost/22/tcp": "tcp://127.0.0.1:22", "host//localhost/8082/tcp": "http://[::1]:8082",
		"host//localhost/1/tcp": "http://192.168.0.1:1",
	} {
		if got := x.services[id].GetOrigin(); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	look()
	if got := x.take(); len(got) > 0 {
		t.Errorf("nothing changed, but told %q", got)
	}
	// One goes, one is started again by another program.
	r.process(12, "nginx", 77)
	r.write("net/tcp", head+row("0100007F:0BB8", "0A", 77))
	r.write("net/tcp6", head)
	look()
	if got, want := x.take(), []string{"delete port-1", "delete port-8082", "delete sshd", "put nginx"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	_ = os.Remove(filepath.Join(r.dir, "net/tcp"))
	if err := p.look(t.Context(), x); err == nil {
		t.Error("a list that cannot be read is no error")
	}
	if len(x.take()) > 0 {
		t.Error("services are gone because the list cannot be read")
	}
}

func TestOffInContainers(t *testing.T) {
	x := newTold()
	New(Config{Container: func() bool { return true }}).Run(t.Context(), x)
	if x.state != discovery.Off || len(x.services) > 0 {
		t.Errorf("state %q, %d services", x.state, len(x.services))
	}
	if !discovery.InContainer(func(name string) string { return map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"}[name] }) {
		t.Error("a Pod is no container")
	}
}

// A real listener of another process than the agent's is found within two seconds, and so is its end.
func TestRealPorts(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	port := s.Listener.Addr().(*net.TCPAddr).Port
	id := fmt.Sprintf("host//localhost/%d/tcp", port)
	p := New(Config{Container: func() bool { return false }})
	p.pid = -1
	ctx, cancel := context.WithCancel(t.Context())
	x := newTold()
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx, x) })
	defer wg.Wait()
	defer cancel()
	within := func(there bool) *hubv1.DiscoveredService {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			x.mu.Lock()
			s := x.services[id]
			x.mu.Unlock()
			if (s != nil) == there {
				return s
			}
			if time.Now().After(end) {
				t.Fatalf("there: %v, want %v", s != nil, there)
			}
		}
	}
	if got := within(true); got.GetOrigin() != s.URL {
		t.Errorf("%v, want %s", got, s.URL)
	}
	s.Close()
	within(false)
}

func TestSniff(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
			_ = c.Close()
		}
	}()
	at := func(u string) netip.AddrPort { return netip.MustParseAddrPort(u[strings.LastIndex(u, "/")+1:]) }
	if got := discovery.Sniff(t.Context(), at(plain.URL)); got != "http" {
		t.Errorf("http is taken for %s", got)
	}
	if got := discovery.Sniff(t.Context(), at(secure.URL)); got != "https" {
		t.Errorf("https is taken for %s", got)
	}
	if got := discovery.Sniff(t.Context(), at(l.Addr().String())); got != "tcp" {
		t.Errorf("ssh is taken for %s", got)
	}
	<-done
}

func TestLabel(t *testing.T) {
	for in, want := range map[string]string{"Home Assistant": "home-assistant", "a__b": "a-b", "-x-": "x", "": "", "ä": "", strings.Repeat("a", 80): strings.Repeat("a", 63)} {
		if got := discovery.Label(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
