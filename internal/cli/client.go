package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/server"
)

// rpcTimeout bounds one call of a management command.
const rpcTimeout = 30 * time.Second

// client is the hub API as a person's tool calls it.
type client struct {
	http *http.Client
	base string
	opts []connect.ClientOption
	// where is said in errors.
	where string
}

// loginFile is what `adit login` wrote, empty without one.
func (a *app) loginFile() string {
	path, err := a.loginPath()
	if err != nil {
		return ""
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// dial finds the hub: --server-url or --data-dir where one was said, then the login file, then
// the default data folder.
func (a *app) dial(cmd *cobra.Command) (*client, error) {
	v, err := a.load(cmd, config.ForClient, a.loginFile())
	if err != nil {
		return nil, err
	}
	c, err := v.Client()
	if err != nil {
		return nil, err
	}
	for _, w := range v.Warnings {
		a.warn("%s", w)
	}
	byHand := func(name string) bool {
		src := v.Source(name)
		return strings.HasPrefix(src, "flag ") || strings.HasPrefix(src, "environment ")
	}
	if c.ServerURL != "" && (byHand("server-url") || !byHand("data-dir")) {
		return remoteClient(c)
	}
	return localClient(c.DataDir)
}

func remoteClient(c *config.Client) (*client, error) {
	if c.APIKey == "" {
		return nil, failWith(exitCredential, "unauthenticated", "run adit login, or give --api-key-file or ADIT_API_KEY_FILE", "there is no API key for %s", c.ServerURL)
	}
	var roots []byte
	if c.CAFile != "" {
		raw, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, usageErrorf("--ca-file: %w", err)
		}
		roots = raw
	}
	pool, err := rootPool(roots)
	if err != nil {
		return nil, err
	}
	return newClient(webClient(pool), c.ServerURL, c.APIKey, c.ServerURL), nil
}

// localClient reaches the hub on this host: the address from server.json, the hub's key pinned,
// admin.key as bearer. No DNS and no certificate is needed.
func localClient(dataDir string) (*client, error) {
	st, err := server.ReadState(dataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failWith(exitUnreachable, "hub_unreachable",
			"on another host use --server-url with --api-key-file; on the server's host name its folder with --data-dir",
			"no server runs with the data folder %s", dataDir)
	case unreadable(err):
		return nil, failWith(exitCredential, "unauthenticated", "run as the user that runs the server", "%w", err)
	case err != nil:
		return nil, err
	}
	if st.HubKeyHash == "" {
		return nil, failWith(exitFailed, "wrong_host", "run the command at the hub: "+st.HubURL, "the server with the data folder %s has no hub role", dataDir)
	}
	pin, err := hex.DecodeString(st.HubKeyHash)
	if err != nil {
		return nil, failWith(exitFailed, "invalid", "start the server again", "server.json: hub_key_hash: %w", err)
	}
	key, err := os.ReadFile(server.AdminKeyPath(dataDir))
	if err != nil {
		return nil, failWith(exitCredential, "unauthenticated", "run as the user that runs the server", "%w", err)
	}
	local := hublink.NewPinnedClient
	if st.ProxyHeader {
		local = hublink.NewProxiedClient
	}
	h, base := local(st.DialHTTPS(), [][]byte{pin})
	return newClient(h, base, string(bytes.TrimSpace(key)), st.DialHTTPS()), nil
}

func newClient(h *http.Client, base, key, where string) *client {
	return &client{http: h, base: base, opts: []connect.ClientOption{connect.WithInterceptors(bearer{key, where})}, where: where}
}

// bearer sends the key with every call, and says of unary ones which server was meant when nobody
// answered.
type bearer struct{ key, where string }

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if b.key != "" {
			req.Header().Set("Authorization", "Bearer "+b.key)
		}
		ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
		defer cancel()
		resp, err := next(ctx, req)
		if err != nil {
			return nil, explainCall(err, b.where)
		}
		return resp, nil
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if b.key != "" {
			conn.RequestHeader().Set("Authorization", "Bearer "+b.key)
		}
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// explainCall adds which server was meant when nobody answered.
func explainCall(err error, where string) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return failWith(exitUnreachable, "hub_unreachable", "give the root that signed it with --ca-file (<data-dir>/ca.crt on the server)", "the certificate of %s is not trusted: %w", where, err)
	}
	if unreachable(err) {
		return failWith(exitUnreachable, "hub_unreachable", "is the server running? `adit doctor` tests the way to it", "no answer from %s: %w", where, err)
	}
	return err
}

func (c *client) close() { c.http.CloseIdleConnections() }

// call is the frame of a management command: dial, run, close.
func (a *app) call(run func(ctx context.Context, c *client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial(cmd)
		if err != nil {
			return err
		}
		defer c.close()
		return run(cmd.Context(), c, args)
	}
}

// pages calls list until there is no further page.
func pages(list func(token string) (next string, err error)) error {
	for token := ""; ; {
		next, err := list(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}
