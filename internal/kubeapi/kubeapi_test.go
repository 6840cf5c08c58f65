package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// buffer is a log that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// api is a small API server: Services, or a refusal.
type api struct {
	refuse func(r *http.Request) *metav1.Status
	mu     sync.Mutex
	names  []string
	auth   []string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.auth = append(a.auth, r.Header.Get("Authorization"))
	list := corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, n := range a.names {
		list.Items = append(list.Items, corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: n}})
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Warning", `299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"`)
	switch s := a.refuse(r); {
	case s != nil:
		s.TypeMeta, s.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, "Failure"
		w.WriteHeader(int(s.Code))
		_ = json.NewEncoder(w).Encode(s)
	case r.URL.Path == "/api/v1/namespaces/a/services/x":
		_ = json.NewEncoder(w).Encode(corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}})
	case r.URL.Query().Get("watch") == "":
		_ = json.NewEncoder(w).Encode(list)
	default:
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// noStream is what servers say that cannot send a list as a watch.
func noStream(r *http.Request) *metav1.Status {
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		return &metav1.Status{Code: 422, Reason: metav1.StatusReasonInvalid, Message: "sendInitialEvents is forbidden"}
	}
	return nil
}

// names is a store that remembers names.
type names struct {
	mu  sync.Mutex
	all []string
}

func (n *names) Add(any) error    { return nil }
func (n *names) Update(any) error { return nil }
func (n *names) Delete(any) error { return nil }
func (n *names) Resync() error    { return nil }

func (n *names) Replace(list []any, _ string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = nil
	for _, o := range list {
		n.all = append(n.all, o.(*corev1.Service).Name)
	}
	return nil
}

// watching watches Services of s and returns what the watch tells.
func watching(t *testing.T, s *httptest.Server, store *names, log *slog.Logger) <-chan string {
	t.Helper()
	c, err := New(&rest.Config{Host: s.URL}, log)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Watch(ctx, Services, &corev1.Service{}, store, func(err error) {
			text := "ok"
			if err != nil {
				text = err.Error()
			}
			told <- text
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		c.rest.Client.CloseIdleConnections()
	})
	return told
}

// shut ends s under a client that connects again at once: Close waits for the requests that
// run, and a watch that began since the connections were closed would run for ever.
func shut(s *httptest.Server) {
	closed := make(chan struct{})
	go func() { defer close(closed); s.Close() }()
	for {
		select {
		case <-closed:
			return
		case <-time.After(10 * time.Millisecond):
			s.CloseClientConnections()
		}
	}
}

func await(t *testing.T, told <-chan string, part string) string {
	t.Helper()
	last := "nothing"
	for limit := time.After(50 * time.Second); ; {
		select {
		case last = <-told:
			if strings.Contains(last, part) {
				return last
			}
		case <-limit:
			t.Fatalf("%q was not told; last was %q", part, last)
		}
	}
}

func TestWatchLosesAndFindsTheServer(t *testing.T) {
	a := &api{refuse: noStream, names: []string{"x", "y"}}
	s := httptest.NewServer(a)
	var log buffer
	store := &names{}
	told := watching(t, s, store, slog.New(slog.NewTextHandler(&log, nil)))
	await(t, told, "ok")
	addr := s.Listener.Addr().String()
	shut(s)
	text := await(t, told, "the API server does not answer")
	if strings.Contains(text, "resourceVersion") || !strings.Contains(text, addr) {
		t.Errorf("told %q", text)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.names = []string{"z"}
	a.mu.Unlock()
	s = httptest.NewUnstartedServer(a)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	defer shut(s)
	await(t, told, "ok")
	if n := strings.Count(log.String(), "Endpoints is deprecated"); n != 1 {
		t.Errorf("the warning was logged %d times:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("more than the warning was logged:\n%s", log.String())
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		status metav1.Status
		want   string
	}{
		{metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "services is forbidden: User \"x\" cannot list"}, "services is forbidden: User \"x\" cannot list; bind a Role or ClusterRole"},
		{metav1.Status{Code: 401, Reason: metav1.StatusReasonUnauthorized, Message: "Unauthorized"}, "does not take the ServiceAccount's token"},
	} {
		s := httptest.NewServer(&api{refuse: func(*http.Request) *metav1.Status { return &c.status }})
		told := watching(t, s, &names{}, nil)
		await(t, told, c.want)
		shut(s)
	}
}

func TestInCluster(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	a := &api{refuse: noStream}
	s := httptest.NewTLSServer(a)
	defer s.Close()
	host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	env := func(name string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}[name]
	}
	dir := t.TempDir()
	try := func(getenv func(string) string) (*Client, error) { return InCluster(getenv, dir, nil) }
	if _, err := try(func(string) string { return "" }); !errors.Is(err, ErrNoAccess) {
		t.Errorf("outside of a cluster: %v", err)
	}
	if _, err := try(env); !errors.Is(err, ErrNoAccess) {
		t.Errorf("without a token: %v", err)
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token", "the-token")
	if _, err := try(env); err == nil || errors.Is(err, ErrNoAccess) || !strings.Contains(err.Error(), "CA") {
		t.Errorf("without a CA: %v", err)
	}
	write("ca.crt", "nothing")
	if _, err := try(env); err == nil || !strings.Contains(err.Error(), "PEM") {
		t.Errorf("with a broken CA: %v", err)
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	c, err := try(env)
	if err != nil {
		t.Fatal(err)
	}
	defer c.rest.Client.CloseIdleConnections()
	var one corev1.Service
	if err := c.Get(t.Context(), "a", Services, "x", &one); err != nil {
		t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.auth) == 0 || a.auth[len(a.auth)-1] != "Bearer the-token" {
		t.Errorf("authorization %q", a.auth)
	}
}

// A server that hangs up on every request is told of, whatever the library makes of it.
func TestHangUp(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}})
	}))
	defer shut(s)
	await(t, watching(t, s, &names{}, nil), errNoAnswer.Error())
}
