// Package outbound dials TCP, through an HTTP proxy where the environment names one.
package outbound

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds what a proxy may answer to CONNECT.
const maxAnswer = 16 << 10

// Dial connects to addr (host:port), through the proxy that proxy names for https://addr. A nil
// proxy, or one that returns nil, means directly. Proxies are http:// or https:// URLs; user and
// password in the URL are sent as basic credentials.
func Dial(ctx context.Context, proxy func(target *url.URL) (*url.URL, error), addr string) (net.Conn, error) {
	var via *url.URL
	if proxy != nil {
		var err error
		if via, err = proxy(&url.URL{Scheme: "https", Host: addr}); err != nil {
			return nil, fmt.Errorf("proxy setting for %s: %w", addr, err)
		}
	}
	d := &net.Dialer{KeepAlive: 15 * time.Second}
	if via == nil {
		return d.DialContext(ctx, "tcp", Loopback(addr))
	}
	c, err := connect(ctx, d, via, addr)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", via.Host, err)
	}
	return c, nil
}

// Loopback replaces a host below .localhost in addr (host:port) by the loopback address: such
// names need no resolver, and most resolvers do not know them.
func Loopback(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if h := strings.TrimSuffix(strings.ToLower(host), "."); h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

func connect(ctx context.Context, d *net.Dialer, via *url.URL, addr string) (_ net.Conn, err error) {
	port := via.Port()
	switch {
	case via.Scheme != "http" && via.Scheme != "https":
		return nil, fmt.Errorf("scheme %q is not known; give an http:// or https:// URL", via.Scheme)
	case port == "" && via.Scheme == "https":
		port = "443"
	case port == "":
		port = "80"
	}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(via.Hostname(), port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	raw := c
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			_ = raw.Close()
		}
	}()
	if via.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: via.Hostname(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if u := via.User; u != nil {
		pw, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+pw)))
	}
	if err := req.Write(c); err != nil {
		return nil, err
	}
	br := bufio.NewReader(&limited{c, maxAnswer})
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s was answered %s", addr, resp.Status)
	}
	if n := br.Buffered(); n > 0 {
		// The proxy may have passed on the first bytes of the other side already.
		head, _ := br.Peek(n)
		return &replayed{c, head}, nil
	}
	return c, nil
}

// limited fails after n bytes: no endless header is read.
type limited struct {
	net.Conn
	n int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.n <= 0 {
		return 0, fmt.Errorf("answer has more than %d bytes", maxAnswer)
	}
	n, err := l.Conn.Read(p[:min(len(p), l.n)])
	l.n -= n
	return n, err
}

type replayed struct {
	net.Conn
	head []byte
}

func (r *replayed) Read(p []byte) (int, error) {
	if len(r.head) > 0 {
		n := copy(p, r.head)
		r.head = r.head[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}
