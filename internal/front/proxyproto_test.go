package front

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestProxyProtocol(t *testing.T) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	v1 := "PROXY TCP4 192.0.2.9 198.51.100.4 40000 443\r\n"
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x09\xc6\x33\x64\x04\x9c\x40\x01\xbb"
	request := func(t *testing.T, addr, first, rest string, conf *tls.Config) string {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, first); err != nil {
			return ""
		}
		var rw io.ReadWriter = c
		if conf != nil {
			rw = tls.Client(c, conf)
		}
		if _, err := io.WriteString(rw, rest); err != nil {
			return ""
		}
		resp, err := http.ReadResponse(bufio.NewReader(rw), nil)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	const req = "GET / HTTP/1.1\r\nHost: q.test\r\nConnection: close\r\n\r\n"
	trusted := start(t, Config{ProxyFrom: loopback, ListenHTTP: "127.0.0.1:0"}, nil)
	for name, header := range map[string]string{"v1": v1, "v2": v2} {
		t.Run("I03 "+name+" from a balancer gives the resolved address", func(t *testing.T) {
			got := request(t, trusted.addr, header, req, trusted.client("q.test"))
			if got != "HTTP/1.1 q.test 192.0.2.9:40000 198.51.100.4:443" {
				t.Errorf("%q", got)
			}
			if got := request(t, trusted.HTTPAddr().String(), header, req, nil); got != "plain 192.0.2.9:40000" {
				t.Errorf("port 80: %q", got)
			}
		})
	}
	t.Run("I03 caps count the resolved address", func(t *testing.T) {
		trusted := start(t, Config{ProxyFrom: loopback, MaxConnsPerAddress: 1}, nil)
		hold := func(header string) net.Conn {
			c, err := net.Dial("tcp", trusted.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, header)
			return c
		}
		a := hold(v1)
		defer a.Close()
		tc := tls.Client(a, trusted.client("q.test"))
		if err := tc.Handshake(); err != nil {
			t.Fatal(err)
		}
		b := hold(strings.Replace(v1, "192.0.2.9", "192.0.2.10", 1))
		defer b.Close()
		if err := tls.Client(b, trusted.client("q.test")).Handshake(); err != nil {
			t.Errorf("another visitor behind the same balancer: %v", err)
		}
		c := hold(v1)
		defer c.Close()
		if err := tls.Client(c, trusted.client("q.test")).Handshake(); err == nil {
			t.Error("the cap per visitor address of 1 does not hold")
		}
	})
	t.Run("I11 a balancer that sends none is closed", func(t *testing.T) {
		c, err := tls.Dial("tcp", trusted.addr, trusted.client("q.test"))
		if err == nil {
			_ = c.Close()
			t.Error("was served")
		}
	})
	t.Run("I11 a silent balancer is closed after two seconds", func(t *testing.T) {
		c, err := net.Dial("tcp", trusted.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	})
	stranger := start(t, Config{ListenHTTP: "127.0.0.1:0"}, nil)
	for name, header := range map[string]string{"v1": v1, "v2": v2} {
		t.Run("I11 "+name+" from the internet is garbage and closed", func(t *testing.T) {
			if got := request(t, stranger.addr, header, req, stranger.client("q.test")); got != "" {
				t.Errorf("served %q", got)
			}
			if got := request(t, stranger.HTTPAddr().String(), header, req, nil); strings.Contains(got, "192.0.2.9") {
				t.Errorf("believed on port 80: %q", got)
			}
		})
	}
	if n := stranger.served.Load(); n != 0 {
		t.Errorf("%d requests were served", n)
	}
}

// bytesConn is a connection that brings b and ends.
type bytesConn struct {
	net.Conn
	io.Reader
}

func (c *bytesConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }
func (c *bytesConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
}
func (c *bytesConn) LocalAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 443} }
func (c *bytesConn) SetReadDeadline(time.Time) error { return nil }

func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.9 198.51.100.4 40000 443\r\nrest"))
	f.Add([]byte("PROXY TCP6 2001:db8::1 2001:db8::2 40000 443\r\n"))
	f.Add([]byte("PROXY UNKNOWN\r\nrest"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x09\xc6\x33\x64\x04\x9c\x40\x01\xbbrest"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00rest"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + strings.Repeat("/", 216)))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	from := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Resolve(&bytesConn{Reader: strings.NewReader(string(b))}, from)
		if err != nil {
			return
		}
		if !c.Visitor().IsValid() || !c.Local().IsValid() || c.Visitor().Addr().Is4In6() {
			t.Fatalf("visitor %v, local %v", c.Visitor(), c.Local())
		}
		rest, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(b), string(rest)) || len(rest) >= len(b) {
			t.Fatalf("left %q of %q, %v", rest, b, err)
		}
	})
}
