package hublink

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is a Server on a loopback port that dispatches like the front: by ALPN.
type hub struct {
	*Server
	key   *identity.NodeKey
	addr  string
	mu    sync.Mutex
	creds map[string]*hubv1.Credential
	// alpnOnly makes the listener speak HTTPS only, as behind a proxy that ends TLS.
	httpsOnly atomic.Bool
	opens     atomic.Int32
}

func newHub(t *testing.T, change func(*ServerConfig)) *hub {
	t.Helper()
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{key: key, creds: map[string]*hubv1.Credential{}}
	cfg := ServerConfig{
		Key: key,
		Credential: func(_ context.Context, id string) (*hubv1.Credential, error) {
			h.opens.Add(1)
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.creds[id], nil
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/hang":
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			default:
				c, ok := CallerFrom(r.Context())
				if !ok {
					_, _ = fmt.Fprintf(w, "person %s", r.Proto)
					return
				}
				_, _ = fmt.Fprintf(w, "%s %s %s %x", c.Role, c.Credential.Name, c.HostName, c.NodeKey)
			}
		}),
	}
	if change != nil {
		change(&cfg)
	}
	h.Server = NewServer(cfg)
	h.listen(t)
	return h
}

func (h *hub) listen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = l.Addr().String()
	web := httptest.NewUnstartedServer(h.Server)
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	web.StartTLS()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { h.dispatch(ctx, c, web) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		end, stop := context.WithTimeout(context.Background(), time.Second)
		_ = h.Server.Close(end)
		stop()
		cancel()
		web.CloseClientConnections()
		web.Close()
		wg.Wait()
	})
}

func (h *hub) dispatch(ctx context.Context, c net.Conn, web *httptest.Server) {
	defer c.Close()
	cfg := h.TLSConfig()
	if h.httpsOnly.Load() {
		up, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			return
		}
		defer up.Close()
		go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
		_, _ = io.Copy(c, up)
		return
	}
	t := tls.Server(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return
	}
	h.ServeTLS(ctx, t)
}

type machine struct {
	*opening.Dialler
	cred *hubv1.Credential
}

func newMachine(t *testing.T, role wirev1.Role, kind string) *machine {
	t.Helper()
	tok, err := identity.NewToken(identity.TokenKind(kind), "https://hub.test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	node, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	pub := keys.Public()
	return &machine{
		Dialler: &opening.Dialler{Role: role, Keys: keys, Node: node, ReplicaID: make([]byte, 16), HostName: "box", Software: "test"},
		cred:    &hubv1.Credential{TokenId: pub.HexID(), Name: "home", Kind: kind, Ed25519Public: pub.Ed25519, Mldsa65Public: pub.MLDSA65},
	}
}

func (h *hub) know(m *machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.creds[m.cred.TokenId] = m.cred
}

func (h *hub) client(t *testing.T, m *machine, proxy func(*url.URL) (*url.URL, error)) func(path string) (string, error) {
	t.Helper()
	c, base, err := NewClient(ClientConfig{URL: "https://" + h.addr, Pins: [][]byte{h.key.Hash()}, Dialler: m.Dialler, Proxy: proxy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return getter(t, c, base)
}

func getter(t *testing.T, c *http.Client, base string) func(path string) (string, error) {
	return func(path string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		t.Cleanup(cancel)
		req, err := http.NewRequestWithContext(ctx, "GET", base+path, nil)
		if err != nil {
			return "", err
		}
		resp, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
}

func TestProvenCaller(t *testing.T) {
	for _, c := range []struct {
		name  string
		https bool
	}{{"tls", false}, {"websocket", true}} {
		t.Run(c.name, func(t *testing.T) {
			h := newHub(t, nil)
			h.httpsOnly.Store(c.https)
			m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
			h.know(m)
			get := h.client(t, m, nil)
			want := fmt.Sprintf("ROLE_AGENT home box %x", []byte(m.Node.Public()))
			for range 3 {
				if got, err := get("/"); err != nil || got != want {
					t.Fatalf("got %q, %v, want %q", got, err, want)
				}
			}
			if n := h.opens.Load(); n != 1 {
				t.Errorf("%d openings for three requests, want 1", n)
			}
			// A dropped connection is dialled and proved again.
			h.CloseToken(m.cred.TokenId)
			got, err := get("/")
			for i := 0; err != nil && i < 10; i++ {
				got, err = get("/")
			}
			if err != nil || got != want || h.opens.Load() < 2 {
				t.Errorf("after the drop: %q, %v, %d openings", got, err, h.opens.Load())
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		role   wirev1.Role
		kind   string
		change func(h *hub, m *machine)
		want   reason.Code
	}{
		{"unknown token, or one of another server", wirev1.Role_ROLE_AGENT, "invite", func(h *hub, m *machine) { delete(h.creds, m.cred.TokenId) }, reason.TokenUnknown},
		{"revoked", wirev1.Role_ROLE_AGENT, "invite", func(_ *hub, m *machine) { m.cred.Revoked = true }, reason.TokenRevoked},
		{"expired", wirev1.Role_ROLE_AGENT, "invite", func(_ *hub, m *machine) {
			m.cred.ExpiresAt = timestamppb.New(time.Now().Add(-time.Second))
		}, reason.TokenExpired},
		{"invite as edge", wirev1.Role_ROLE_EDGE, "invite", nil, reason.TokenWrongKind},
		{"edge token as agent", wirev1.Role_ROLE_AGENT, "edge", nil, reason.TokenWrongKind},
		{"no role", wirev1.Role_ROLE_UNSPECIFIED, "invite", nil, reason.TokenWrongKind},
		{"wrong source", wirev1.Role_ROLE_AGENT, "invite", func(_ *hub, m *machine) { m.cred.From = []string{"10.0.0.0/8", "::/0"} }, reason.SourceDenied},
		{"other keys", wirev1.Role_ROLE_AGENT, "invite", func(_ *hub, m *machine) {
			pub, _, _ := ed25519.GenerateKey(nil)
			m.cred.Ed25519Public = pub
		}, reason.ProofInvalid},
		{"short replica id", wirev1.Role_ROLE_AGENT, "invite", func(_ *hub, m *machine) { m.ReplicaID = []byte{1} }, reason.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHub(t, nil)
			m := newMachine(t, c.role, c.kind)
			h.know(m)
			if c.change != nil {
				c.change(h, m)
			}
			_, err := h.client(t, m, nil)("/")
			var e *reason.Error
			if !errors.As(err, &e) || e.Code != c.want || e.Hop != reason.HopHub {
				t.Fatalf("got %v, want %s at hub", err, c.want)
			}
		})
	}
	t.Run("admit", func(t *testing.T) {
		h := newHub(t, func(cfg *ServerConfig) {
			cfg.Admit = func(context.Context, *Caller) *reason.Error {
				return reason.New(reason.TooManyReplicas, reason.HopHub, "full")
			}
		})
		m := newMachine(t, wirev1.Role_ROLE_EDGE, "edge")
		h.know(m)
		if _, err := h.client(t, m, nil)("/"); !reason.Is(err, reason.TooManyReplicas) {
			t.Fatal(err)
		}
	})
	t.Run("expiry bounds new replicas only", func(t *testing.T) {
		for _, known := range []bool{true, false} {
			for _, ends := range []bool{true, false} {
				h := newHub(t, func(cfg *ServerConfig) {
					cfg.Known = func(string, []byte, ed25519.PublicKey) bool { return known }
				})
				m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
				m.cred.ExpiresAt, m.cred.ExpiresSessions = timestamppb.New(time.Now().Add(-time.Second)), ends
				h.know(m)
				_, err := h.client(t, m, nil)("/")
				if ok := known && !ends; (err == nil) != ok || !ok && !reason.Is(err, reason.TokenExpired) {
					t.Errorf("known %v, ends sessions %v: %v", known, ends, err)
				}
				if m.cred.ExpiresAt == nil {
					t.Error("the credential was changed")
				}
			}
		}
	})
	t.Run("store away", func(t *testing.T) {
		h := newHub(t, func(cfg *ServerConfig) {
			cfg.Credential = func(context.Context, string) (*hubv1.Credential, error) { return nil, errors.New("disk I/O error") }
		})
		if _, err := h.client(t, newMachine(t, wirev1.Role_ROLE_AGENT, "invite"), nil)("/"); !reason.Is(err, reason.StoreUnavailable) {
			t.Fatal(err)
		}
	})
}

func TestWrongPin(t *testing.T) {
	h := newHub(t, nil)
	m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
	h.know(m)
	for _, https := range []bool{false, true} {
		h.httpsOnly.Store(https)
		c, base, err := NewClient(ClientConfig{URL: "https://" + h.addr, Pins: [][]byte{make([]byte, 32)}, Dialler: m.Dialler})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := getter(t, c, base)("/"); !reason.Is(err, reason.HubUnreachable) {
			t.Errorf("https only %v: %q, %v", https, got, err)
		}
	}
	if h.opens.Load() != 0 {
		t.Error("an opening was sent to a hub that is not pinned")
	}
}

func TestThroughProxy(t *testing.T) {
	h := newHub(t, nil)
	m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
	h.know(m)
	var connects atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		connects.Add(1)
		up, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer up.Close()
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
		_, _ = io.Copy(c, up)
	}))
	defer proxy.Close()
	u, _ := url.Parse(proxy.URL)
	for _, https := range []bool{false, true} {
		h.httpsOnly.Store(https)
		get := h.client(t, m, func(*url.URL) (*url.URL, error) { return u, nil })
		if got, err := get("/"); err != nil || !strings.HasPrefix(got, "ROLE_AGENT") {
			t.Errorf("https only %v: %q, %v", https, got, err)
		}
	}
	if connects.Load() < 2 {
		t.Errorf("%d CONNECTs", connects.Load())
	}
	h.CloseToken(m.cred.TokenId)
}

func TestPerson(t *testing.T) {
	h := newHub(t, nil)
	c, base := NewPinnedClient(h.addr, [][]byte{h.key.Hash()})
	defer c.CloseIdleConnections()
	if got, err := getter(t, c, base)("/"); err != nil || got != "person HTTP/2.0" {
		t.Errorf("%q, %v", got, err)
	}
	bad, base := NewPinnedClient(h.addr, [][]byte{make([]byte, 32)})
	if _, err := getter(t, bad, base)("/"); !reason.Is(err, reason.HubUnreachable) {
		t.Errorf("wrong pin: %v", err)
	}
	gone, base := NewPinnedClient("127.0.0.1:1", [][]byte{h.key.Hash()})
	if _, err := getter(t, gone, base)("/"); !reason.Is(err, reason.HubUnreachable) {
		t.Errorf("no server: %v", err)
	}
}

// dialRaw is a TLS connection with a client certificate that has not sent its opening.
func dialRaw(t *testing.T, h *hub) *tls.Conn {
	t.Helper()
	node, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", h.addr, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{opening.ALPNHub}, Certificates: []tls.Certificate{node.Certificate()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestBeforeAuthentication(t *testing.T) {
	t.Parallel()
	t.Run("a silent person's tool is cut off after 5 s", func(t *testing.T) {
		t.Parallel()
		h := newHub(t, nil)
		c, err := tls.Dial("tcp", h.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{opening.ALPNHub}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := time.Now()
		_ = c.SetReadDeadline(start.Add(10 * time.Second))
		for err == nil {
			_, err = c.Read(make([]byte, 1024))
		}
		if time.Since(start) > 9*time.Second {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
	})
	t.Run("a silent caller is cut off after 5 s", func(t *testing.T) {
		t.Parallel()
		h := newHub(t, nil)
		c, start := dialRaw(t, h), time.Now()
		_ = c.SetReadDeadline(start.Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 9*time.Second {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
	})
	t.Run("nothing above 16 KiB is read", func(t *testing.T) {
		h := newHub(t, nil)
		c := dialRaw(t, h)
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 16<<10+1)
		if _, err := c.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err := c.Read(b[:]); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	})
	t.Run("connections per address are capped", func(t *testing.T) {
		h := newHub(t, nil)
		m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
		h.know(m)
		for range maxStrangers {
			dialRaw(t, h)
		}
		c := dialRaw(t, h)
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one above the cap: %v", err)
		}
	})
	t.Run("proven callers do not count", func(t *testing.T) {
		h := newHub(t, nil)
		m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
		h.know(m)
		if _, err := h.client(t, m, nil)("/"); err != nil {
			t.Fatal(err)
		}
		h.Server.mu.Lock()
		defer h.Server.mu.Unlock()
		if len(h.strangers) != 0 {
			t.Errorf("strangers: %v", h.strangers)
		}
	})
}

func TestCloseToken(t *testing.T) {
	h := newHub(t, nil)
	m, other := newMachine(t, wirev1.Role_ROLE_AGENT, "invite"), newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
	h.know(m)
	h.know(other)
	hang := func(m *machine) <-chan error {
		c, base, err := NewClient(ClientConfig{URL: "https://" + h.addr, Pins: [][]byte{h.key.Hash()}, Dialler: m.Dialler})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		req, _ := http.NewRequestWithContext(ctx, "GET", base+"/hang", nil)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		ch := make(chan error, 1)
		go func() {
			defer c.CloseIdleConnections()
			defer resp.Body.Close()
			_, err := io.ReadAll(resp.Body)
			ch <- err
		}()
		return ch
	}
	a, b := hang(m), hang(other)
	h.CloseToken(m.cred.TokenId)
	select {
	case err := <-a:
		if err == nil {
			t.Error("the stream of a revoked token ended cleanly")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the connection of a revoked token lives on")
	}
	select {
	case err := <-b:
		t.Errorf("the connection of another token ended: %v", err)
	default:
	}
	h.Server.mu.Lock()
	n := len(h.byToken)
	h.Server.mu.Unlock()
	if n != 1 {
		t.Errorf("%d tokens tracked, want 1", n)
	}
}

func TestClientConfigErrors(t *testing.T) {
	m := newMachine(t, wirev1.Role_ROLE_AGENT, "invite")
	pin := [][]byte{make([]byte, 32)}
	for _, c := range []ClientConfig{
		{URL: "http://hub", Pins: pin, Dialler: m.Dialler}, {URL: "https://", Pins: pin, Dialler: m.Dialler},
		{URL: "https://hub/x", Pins: pin, Dialler: m.Dialler}, {URL: "https://hub", Dialler: m.Dialler}, {URL: "https://hub", Pins: pin},
	} {
		if _, _, err := NewClient(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
