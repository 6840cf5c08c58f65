package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/outbound"
	"github.com/adit-dev/adit/internal/telemetry"
)

// signedIn is the file that adit login writes: settings of this program, the certificate of an
// internal CA beside it.
type signedIn struct {
	ServerURL string `yaml:"server-url"`
	APIKey    string `yaml:"api-key"`
	CAFile    string `yaml:"ca-file,omitempty"`
}

func (a *app) loginCommand() *cobra.Command {
	var fingerprint, client string
	c := &cobra.Command{
		Use: "login URL", Short: "Sign this tool in to a hub: a person confirms it in a browser", Args: oneArg("URL"),
		Long: `Signs in to the hub at URL. It shows an address and a code; open the address in a browser
where you are signed in, compare the code, and approve. The key that this tool gets is kept in
~/.config/adit/config.yaml, readable only by you; adit logout gives it back.

A hub with the internal CA is not known to this machine. Then login shows the fingerprint of
its CA, which the server printed at its start, and asks; --fingerprint answers beforehand.`,
		Example: "  adit login https://hub.example.com",
	}
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "SHA-256 of the hub's internal CA, as the server printed it")
	c.Flags().StringVar(&client, "client", "", "name of this tool on your account page (default this host's name)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		base, err := hubAddress(args[0])
		if err != nil {
			return err
		}
		if client == "" {
			if client, err = os.Hostname(); err != nil || client == "" {
				client = "adit"
			}
		}
		return a.login(cmd, base, fingerprint, client)
	}
	return c
}

// hubAddress completes what somebody typed.
func hubAddress(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		return "", usageErrorf("%q is not the address of a hub; write https://hub.example.com", s)
	}
	return "https://" + u.Host, nil
}

// loginPath is the file that login writes, whether it is there or not.
func (a *app) loginPath() (string, error) {
	dir := a.getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := a.getenv("HOME")
		if home == "" {
			return "", failWith(exitFailed, "invalid", "set HOME or XDG_CONFIG_HOME", "there is no folder for the key")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "adit", "config.yaml"), nil
}

func (a *app) login(cmd *cobra.Command, base, fingerprint, client string) error {
	ctx := cmd.Context()
	path, err := a.loginPath()
	if err != nil {
		return err
	}
	v, err := a.load(cmd, config.ForClient, "")
	if err != nil {
		return err
	}
	settings, err := v.Client()
	if err != nil {
		return err
	}
	roots, err := a.trust(ctx, base, settings.CAFile, fingerprint)
	if err != nil {
		return err
	}
	pool, err := rootPool(roots)
	if err != nil {
		return err
	}
	c := newClient(webClient(pool), base, "", base)
	defer c.close()
	token, err := a.confirm(ctx, c, client)
	if err != nil {
		return err
	}
	if err := writeLogin(path, signedIn{ServerURL: base, APIKey: token}, roots); err != nil {
		return err
	}
	me, err := newClient(c.http, base, token, base).users().WhoAmI(ctx, &hubv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	a.say("Signed in to %s as %s (%s). The key is in %s.", base, me.GetUser().GetName(), me.GetRole(), path)
	return nil
}

// confirm waits until a person has answered in a browser.
func (a *app) confirm(ctx context.Context, c *client, name string) (string, error) {
	d, err := c.devices().StartDevice(ctx, &hubv1.StartDeviceRequest{Client: name})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(a.Stderr, "Open this address in a browser where you are signed in:\n\n  %s\n\nand approve if it shows the code %s.\n", d.GetVerificationUrl(), d.GetUserCode())
	every := time.Duration(max(d.GetIntervalSeconds(), 1)) * time.Second
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(every):
		}
		r, err := c.devices().PollDevice(ctx, &hubv1.PollDeviceRequest{DeviceCode: d.GetDeviceCode()})
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			every += time.Second
			continue
		}
		if err != nil {
			return "", err
		}
		switch r.GetState() {
		case "pending":
		case "done":
			return r.GetToken(), nil
		case "denied":
			return "", failWith(exitCredential, "access_denied", "approve it on the page, or ask who denied it", "the sign-in was denied")
		default:
			return "", failWith(exitCredential, "unauthenticated", "run adit login again", "nobody answered in time")
		}
	}
}

// trust returns the certificates that the hub is verified with: nothing for the system's roots,
// the file that was named, or the hub's own CA once its fingerprint was compared.
func (a *app) trust(ctx context.Context, base, caFile, fingerprint string) ([]byte, error) {
	if caFile != "" {
		raw, err := os.ReadFile(caFile)
		if err != nil {
			return nil, usageErrorf("--ca-file: %w", err)
		}
		return raw, nil
	}
	err := visit(ctx, base, webClient(nil))
	var unknown x509.UnknownAuthorityError
	if err == nil {
		return nil, nil
	}
	if !errors.As(err, &unknown) {
		return nil, explainCall(err, base)
	}
	raw, got, err := foreignCA(ctx, base)
	if err != nil {
		return nil, err
	}
	switch {
	case fingerprint != "":
		if plainHex(fingerprint) != plainHex(got) {
			return nil, failWith(exitCredential, "unauthenticated", "compare with what the server printed; somebody may stand between", "the CA of %s has the fingerprint %s, not the one given", base, got)
		}
	case telemetry.IsTerminal(a.Stderr):
		fmt.Fprintf(a.Stderr, "This machine does not know the CA of %s. Its SHA-256 fingerprint is\n\n  %s\n\nThe server printed it at its start. Is it the same? [y/N] ", base, got)
		line, _ := bufio.NewReader(io.LimitReader(a.Stdin, 100)).ReadString('\n')
		if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
			return nil, failWith(exitCredential, "unauthenticated", "give --ca-file or --fingerprint", "the CA of %s was not accepted", base)
		}
	default:
		return nil, failWith(exitCredential, "unauthenticated", "compare it with what the server printed, then give --fingerprint "+got+", or --ca-file", "this machine does not know the CA of %s; its fingerprint is %s", base, got)
	}
	return raw, nil
}

// visit makes one request.
func visit(ctx context.Context, base string, c *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/ca.crt", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// foreignCA fetches the CA that a hub shows everybody, over a connection that nobody vouches for:
// it counts only once a person has compared the fingerprint.
func foreignCA(ctx context.Context, base string) (raw []byte, fingerprint string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	c := webClient(nil)
	c.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/ca.crt", nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", explainCall(err, base)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, "", err
	}
	b, _ := pem.Decode(raw)
	if resp.StatusCode != http.StatusOK || b == nil {
		return nil, "", failWith(exitCredential, "unauthenticated", "give the root that signed it with --ca-file", "the certificate of %s is not trusted, and the hub shows no CA of its own", base)
	}
	sum := sha256.Sum256(b.Bytes)
	parts := make([]string, len(sum))
	for i, x := range sum {
		parts[i] = fmt.Sprintf("%02X", x)
	}
	return raw, strings.Join(parts, ":"), nil
}

func plainHex(s string) string {
	return strings.ToUpper(strings.NewReplacer(":", "", " ", "").Replace(s))
}

// rootPool are the system's roots and those in roots; nil for the system's alone.
func rootPool(roots []byte) (*x509.CertPool, error) {
	if len(roots) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(roots) {
		return nil, usageErrorf("--ca-file: holds no PEM certificate")
	}
	return pool, nil
}

// webClient verifies with roots; nil = the system's.
func webClient(roots *x509.CertPool) *http.Client {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.TLSClientConfig, tr.ForceAttemptHTTP2 = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}, true
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, outbound.Loopback(addr))
	}
	return &http.Client{Transport: tr}
}

// writeLogin keeps the key for later commands, readable only by this user.
func writeLogin(path string, s signedIn, roots []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if len(roots) > 0 {
		s.CAFile = filepath.Join(dir, "ca.crt")
		if err := os.WriteFile(s.CAFile, roots, 0o600); err != nil {
			return err
		}
	}
	raw, err := yaml.Marshal(s)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Give back the key that adit login got, and forget the hub", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := a.loginPath()
			if err != nil {
				return err
			}
			raw, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				a.say("Nobody is signed in.")
				return nil
			}
			if err != nil {
				return err
			}
			var s signedIn
			if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&s); err != nil {
				return failWith(exitFailed, "invalid", "mend or remove the file", "%s: %w", path, err)
			}
			if err := s.revoke(cmd.Context()); err != nil {
				a.warn("the key could not be deleted at %s: %v; delete it on your account page", s.ServerURL, err)
			}
			if err := os.Remove(path); err != nil {
				return err
			}
			a.say("Signed out of %s.", s.ServerURL)
			return nil
		},
	}
}

// revoke ends the sign-in at the hub.
func (s signedIn) revoke(ctx context.Context) error {
	var roots []byte
	if s.CAFile != "" {
		raw, err := os.ReadFile(s.CAFile)
		if err != nil {
			return err
		}
		roots = raw
	}
	pool, err := rootPool(roots)
	if err != nil {
		return err
	}
	c := newClient(webClient(pool), s.ServerURL, s.APIKey, s.ServerURL)
	defer c.close()
	me, err := c.users().WhoAmI(ctx, &hubv1.WhoAmIRequest{})
	if err != nil || me.GetSignInId() == "" {
		return err
	}
	_, err = c.sessions().RevokeSession(ctx, &hubv1.RevokeSessionRequest{Id: me.GetSignInId()})
	return err
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show who these commands act for, and at which hub", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			r, err := c.users().WhoAmI(ctx, &hubv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			v := struct {
				Name   string   `json:"name"`
				Role   string   `json:"role"`
				Scopes []string `json:"scopes"`
				Hub    string   `json:"hub"`
			}{r.GetName(), r.GetRole(), r.GetScopes(), r.GetHub()}
			return a.print(v, func() error {
				return a.fields("name", v.Name, "role", v.Role, "scopes", strings.Join(v.Scopes, " "), "hub", v.Hub)
			})
		}),
	}
}
