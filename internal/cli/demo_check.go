package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/adit-dev/adit/internal/server"
)

// demoTry is how long one request may take.
const demoTry = 15 * time.Second

// demoResult is one line of --once.
type demoResult struct {
	Status  string `json:"status"`
	Request string `json:"request"`
	Detail  string `json:"detail"`
}

// check makes one real request through each public address.
func (d *demo) check(ctx context.Context) error {
	echo := net.JoinHostPort("127.0.0.1", fmt.Sprint(d.echoPort))
	results, failed := []demoResult{}, 0
	for _, c := range []struct {
		what string
		try  func(context.Context) (string, error)
	}{
		{"GET " + d.url(d.host) + "/ over HTTP/2", func(ctx context.Context) (string, error) { return d.get(ctx, d.host, "") }},
		{"GET " + d.url(demoSecure) + "/ through passthrough", func(ctx context.Context) (string, error) { return d.get(ctx, demoSecure, demoSecure) }},
		{"TCP echo on " + echo, func(ctx context.Context) (string, error) { return tryTCP(ctx, echo) }},
		{"UDP echo on " + echo, func(ctx context.Context) (string, error) { return tryUDP(ctx, echo) }},
	} {
		r := demoResult{Status: "ok", Request: c.what}
		tryCtx, cancel := context.WithTimeout(ctx, demoTry)
		detail, err := c.try(tryCtx)
		cancel()
		if r.Detail = detail; err != nil {
			failed++
			r.Status, r.Detail = "FAIL", err.Error()
		}
		results = append(results, r)
		if d.app.output == outputTable {
			fmt.Fprintf(d.app.Stdout, "%-4s  %s: %s\n", r.Status, r.Request, r.Detail)
		}
	}
	if err := d.app.print(results, func() error { return nil }); err != nil {
		return err
	}
	if failed > 0 {
		return failWith(exitFailed, "demo", "", "%d of %d requests failed", failed, len(results))
	}
	return nil
}

// get fetches / of a host at the demo's server. passthrough, if set, is the only name that the
// certificate may have: that of the origin.
func (d *demo) get(ctx context.Context, host, passthrough string) (string, error) {
	pem, err := os.ReadFile(server.CAPath(d.dir))
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return "", fmt.Errorf("%s holds no certificate", server.CAPath(d.dir))
	}
	tr := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var n net.Dialer
			st := d.server.State()
			return n.DialContext(ctx, network, st.DialHTTPS())
		},
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url(host)+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	for unnamed(err) && ctx.Err() == nil {
		// The certificate follows its tunnel to the edge a moment later.
		time.Sleep(20 * time.Millisecond)
		resp, err = tr.RoundTrip(req)
	}
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return "", err
	case resp.Header.Get("Adit-Error") != "":
		return "", fmt.Errorf("%s: %s", resp.Status, resp.Header.Get("Adit-Error"))
	case resp.StatusCode >= 500:
		return "", fmt.Errorf("the origin answered %s", resp.Status)
	case resp.ProtoMajor != 2:
		return "", fmt.Errorf("the answer came over %s, not HTTP/2", resp.Proto)
	case passthrough != "" && resp.TLS.PeerCertificates[0].VerifyHostname(passthrough) != nil:
		return "", errors.New("the certificate is not the origin's")
	}
	return fmt.Sprintf("%s, %d bytes", resp.Status, len(body)), nil
}

// unnamed reports whether err is the alert of an edge without a certificate for the name.
func unnamed(err error) bool {
	var alert tls.AlertError
	const unrecognizedName = 112
	return errors.As(err, &alert) && alert == unrecognizedName
}

func tryTCP(ctx context.Context, addr string) (string, error) {
	var n net.Dialer
	c, err := n.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	want := nonce()
	if _, err := io.WriteString(c, want); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(io.LimitReader(c, 1<<16))
	if err != nil {
		return "", err
	}
	if string(got) != want {
		return "", fmt.Errorf("sent %q, got %q", want, got)
	}
	return fmt.Sprintf("%d bytes came back", len(got)), nil
}

// tryUDP sends again after a second: a datagram may be lost.
func tryUDP(ctx context.Context, addr string) (string, error) {
	var n net.Dialer
	c, err := n.DialContext(ctx, "udp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	want, buf := nonce(), make([]byte, 1<<16)
	for ctx.Err() == nil {
		if _, err := io.WriteString(c, want); err != nil {
			return "", err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		got, err := c.Read(buf)
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			continue
		}
		if err != nil {
			return "", err
		}
		if string(buf[:got]) != want {
			return "", fmt.Errorf("sent %q, got %q", want, buf[:got])
		}
		return fmt.Sprintf("%d bytes came back", got), nil
	}
	return "", errors.New("no datagram came back")
}

func nonce() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return "adit demo " + hex.EncodeToString(b) + "\n"
}
