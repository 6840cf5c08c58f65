// Package kubeapi reads the API of the Kubernetes cluster that this process runs in. It gets, lists
// and watches; it has nothing that writes.
package kubeapi

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// AccountDir is where Kubernetes puts the token of a Pod, its namespace and the API's CA.
const AccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Resources that Watch and Get know.
const (
	Services  = "services"
	Endpoints = "endpoints"
	Nodes     = "nodes"
)

// dialTime bounds a dial to the API server.
const dialTime = 10 * time.Second

// ErrNoAccess says that this process has no way to the API of a cluster.
var ErrNoAccess = errors.New("no access to a Kubernetes API")

var errNoAnswer = errors.New("the API server does not answer")

// Client reads the API.
type Client struct {
	rest *rest.RESTClient
	log  logr.Logger
}

// InCluster returns a client with the token that the Pod was given, which is read again as it is
// renewed. dir is where it lies; empty = AccountDir. The error is ErrNoAccess where there is no
// token, or no cluster.
func InCluster(getenv func(string) string, dir string, log *slog.Logger) (*Client, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), cmp.Or(getenv("KUBERNETES_SERVICE_PORT"), "443")
	if host == "" {
		return nil, fmt.Errorf("%w: this is no Pod, KUBERNETES_SERVICE_HOST is not set", ErrNoAccess)
	}
	dir = cmp.Or(dir, AccountDir)
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	if _, err := os.Stat(token); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the Pod has no ServiceAccount token (automountServiceAccountToken: false)", ErrNoAccess)
	} else if err != nil {
		return nil, fmt.Errorf("the ServiceAccount's token: %w", err)
	}
	// Without the CA the token would go to whoever a public authority vouches for.
	pem, err := os.ReadFile(ca) //nolint:gosec // a fixed place
	if err != nil {
		return nil, fmt.Errorf("the API server's CA: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the API server's CA: %s holds no PEM certificate", ca)
	}
	return New(&rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: token, TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
	}, log)
}

var quiet sync.Once

// New returns a client for the API that cfg describes.
func New(cfg *rest.Config, log *slog.Logger) (*Client, error) {
	// What the library logs of its own accord is told by state and errors already.
	quiet.Do(func() { klog.SetLogger(logr.Discard()) })
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.UserAgent = "adit-agent"
	cfg.QPS = -1
	cfg.Dial = (&net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}).DialContext
	// A proxy of the environment is for the way out of the cluster.
	cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	cfg.WarningHandlerWithContext = &warnings{log: log}
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{rest: c, log: logr.FromSlogHandler(lowered{log.Handler()})}, nil
}

// Get reads one object into out; namespace is empty for objects that have none.
func (c *Client) Get(ctx context.Context, namespace, resource, name string, out runtime.Object) error {
	return explain(c.rest.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Do(ctx).Into(out))
}

// Watch keeps store up to date with all objects of a resource, of example's type, until ctx ends.
// told hears how the API answers: nil when it does, else why not.
func (c *Client) Watch(ctx context.Context, resource string, example runtime.Object, store cache.ReflectorStore, told func(error)) {
	say := func(err error) {
		if ctx.Err() == nil {
			told(explain(err))
		}
	}
	request := func(o *metav1.ListOptions) *rest.Request {
		// Tries within a request would go on for minutes before anybody is told.
		return c.rest.Get().MaxRetries(0).Resource(resource).VersionedParams(o, metav1.ParameterCodec)
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := request(&o).Do(ctx).Get()
			say(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(&o).Watch(ctx)
			said := err
			// Where the connection broke while the answer was awaited, the library makes it a watch
			// that ends at once.
			if _, answered := w.(*watch.StreamWatcher); err == nil && !answered {
				said = errNoAnswer
			}
			say(said)
			return w, err
		},
	}
	cache.NewReflectorWithOptions(lw, example, store, cache.ReflectorOptions{
		Name: resource, Logger: &c.log,
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 5 * time.Second},
	}).RunWithContext(klog.NewContext(ctx, c.log))
}

// explain adds the remedy to what the API refuses, and leaves out what differs from one try to the
// next.
func explain(err error) error {
	var request *url.Error
	var socket *net.OpError
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; bind a Role or ClusterRole with this verb to the agent's ServiceAccount", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the API server does not take the ServiceAccount's token", err)
	case errors.As(err, &socket):
		return fmt.Errorf("%w: %w", errNoAnswer, &net.OpError{Op: socket.Op, Net: socket.Net, Addr: socket.Addr, Err: socket.Err})
	case errors.As(err, &request):
		return fmt.Errorf("%w: %w", errNoAnswer, request.Err)
	}
	return err
}

// warnings logs each warning of the API server once.
type warnings struct {
	log  *slog.Logger
	mu   sync.Mutex
	seen map[string]bool
}

// maxWarnings bounds the texts that are remembered.
const maxWarnings = 100

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if code != 299 || text == "" || w.seen[text] || len(w.seen) >= maxWarnings {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.log.Warn("the Kubernetes API server warns", "warning", text)
}

// lowered makes every line one for debugging: who calls hears of errors.
type lowered struct{ slog.Handler }

func (l lowered) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && l.Handler.Enabled(ctx, slog.LevelDebug)
}

func (l lowered) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return l.Handler.Handle(ctx, r)
}

func (l lowered) WithAttrs(a []slog.Attr) slog.Handler { return lowered{l.Handler.WithAttrs(a)} }
func (l lowered) WithGroup(name string) slog.Handler   { return lowered{l.Handler.WithGroup(name)} }
