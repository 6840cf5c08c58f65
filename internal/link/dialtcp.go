package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/coder/websocket"
)

// The WebSocket carrier (docs/architecture.md, "Carriers").
const (
	wsPath        = "/.adit/session"
	wsSubprotocol = "adit.1"
)

// tcpTarget is how to reach the edge over TCP.
type tcpTarget struct {
	host  string   // the advertised host:port
	addr  string   // ip:port to dial; empty when a proxy resolves host
	proxy *url.URL // nil = none
}

func (t tcpTarget) String() string {
	if t.proxy != nil {
		return t.host + " via " + t.proxy.Host
	}
	return t.addr
}

// tcpTargets lists how to reach the edge over TCP: through the proxy where one is set, else at
// addrs.
func (c *Connector) tcpTargets(addrs []string) ([]tcpTarget, error) {
	var out []tcpTarget
	hosts := c.cfg.Edge.GetAddresses()
	for _, h := range hosts {
		if c.cfg.Proxy == nil {
			break
		}
		p, err := c.cfg.Proxy(&url.URL{Scheme: "https", Host: h})
		if err != nil {
			return nil, fmt.Errorf("proxy for %s: %w", h, err)
		}
		if p != nil {
			out = append(out, tcpTarget{host: h, proxy: p})
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, a := range addrs {
		t := tcpTarget{host: a, addr: a}
		if len(hosts) > 0 {
			t.host = hosts[0]
		}
		out = append(out, t)
	}
	return out, nil
}

// dialTCP connects for a session or a lane: mutual TLS over TCP, or over a WebSocket.
func (c *Connector) dialTCP(ctx context.Context, t tcpTarget, carrier string) (*binding, error) {
	var below net.Conn
	var err error
	if carrier == CarrierWS {
		below, err = c.dialWS(ctx, t)
	} else if below, err = c.dialThrough(ctx, t); err == nil {
		below = WrapTCP(below)
	}
	if err != nil {
		return nil, err
	}
	tc := tls.Client(below, c.overTCP)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = below.Close()
		return nil, err
	}
	return &binding{
		carrier: carrier, ctl: tc, cs: tc.ConnectionState(), local: below.LocalAddr(), remote: below.RemoteAddr(), target: t,
		close: func(error) { _ = below.Close() },
	}, nil
}

// dialThrough makes a TCP connection, through a proxy's CONNECT where one is set.
func (c *Connector) dialThrough(ctx context.Context, t tcpTarget) (net.Conn, error) {
	d := net.Dialer{KeepAlive: keepAlive}
	if t.proxy == nil {
		return d.DialContext(ctx, "tcp", t.addr)
	}
	addr := t.proxy.Host
	if t.proxy.Port() == "" {
		port := "80"
		if t.proxy.Scheme == "https" {
			port = "443"
		}
		addr = net.JoinHostPort(t.proxy.Hostname(), port)
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", t.proxy.Host, err)
	}
	switch t.proxy.Scheme {
	case "http":
	case "https":
		conn = tls.Client(conn, &tls.Config{ServerName: t.proxy.Hostname(), MinVersion: tls.VersionTLS12})
	default:
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: scheme %q is not supported; use http or https", t.proxy.Host, t.proxy.Scheme)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := connectProxy(conn, t); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: %w", t.proxy.Host, err)
	}
	return conn, nil
}

// connectProxy asks the proxy for a tunnel to the edge.
func connectProxy(conn net.Conn, t tcpTarget) error {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: t.host}, Host: t.host, Header: http.Header{}}
	if u := t.proxy.User; u != nil {
		pw, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+pw)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	// Nothing follows the answer until we speak, so the reader can be left behind.
	br := bufio.NewReaderSize(conn, 4<<10)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT %s answered %s", t.host, resp.Status)
	}
	if br.Buffered() > 0 {
		return errors.New("data after the answer to CONNECT")
	}
	return nil
}

// wsHost is the host that a WebSocket is asked for. An edge takes no visitor without a server name,
// and an IP address is none, so an edge that is known by address only is called by its own name.
func (c *Connector) wsHost(t tcpTarget) string {
	host, _, err := net.SplitHostPort(t.host)
	if err != nil {
		return t.host
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return t.host
	}
	return c.cfg.Edge.GetId() + ".edge." + c.cfg.HubHost
}

// dialWS opens a WebSocket. Its TLS is not trusted, a proxy may end it: the session's own runs
// inside.
func (c *Connector) dialWS(ctx context.Context, t tcpTarget) (net.Conn, error) {
	var under net.Conn
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := c.dialThrough(ctx, t)
			if err == nil {
				under = conn
			}
			return conn, err
		},
	}
	defer tr.CloseIdleConnections()
	ws, resp, err := websocket.Dial(ctx, "https://"+c.wsHost(t)+wsPath, &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Subprotocols: []string{wsSubprotocol},
	})
	if err != nil {
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close()
		}
		return nil, err
	}
	if ws.Subprotocol() != wsSubprotocol {
		_ = ws.CloseNow()
		return nil, fmt.Errorf("%s does not speak %s; is it an edge?", t.host, wsSubprotocol)
	}
	return newWSConn(ws, under.LocalAddr(), under.RemoteAddr()), nil
}
