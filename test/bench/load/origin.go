// Package load is the origin and the visitors of the benchmark: bulk, echo, HTTP, UDP and idle
// connections. They run in other processes than the tunnel, so that only its CPU is counted.
package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// First byte of a TCP connection to the origin: what it should do.
const (
	cmdDownload = 'D'
	cmdUpload   = 'U'
	cmdEcho     = 'E'
	cmdIdle     = 'I'
)

// BodySize is the body of the HTTP origin in bytes.
const BodySize = 130

// ExchangeSize is what an idle connection moves each way where it has traffic.
const ExchangeSize = 256 << 10

// skipHello is the first byte of a TLS record: a visitor of a passthrough tunnel.
const skipHello = 0x16

// Origin serves TCP (bulk, echo, idle), HTTP and UDP echo until ctx ends.
type Origin struct {
	TCP, HTTP net.Listener
	UDP       *net.UDPConn
}

// ListenOrigin binds three free ports of host.
func ListenOrigin(host string) (*Origin, error) {
	t, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	h, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(host)})
	if err != nil {
		_, _ = t.Close(), h.Close()
		return nil, err
	}
	_ = u.SetReadBuffer(8 << 20)
	_ = u.SetWriteBuffer(8 << 20)
	return &Origin{TCP: t, HTTP: h, UDP: u}, nil
}

// Serve runs until ctx ends.
func (o *Origin) Serve(ctx context.Context) {
	go o.serveUDP()
	go func() { _ = httpServer().Serve(o.HTTP) }()
	go func() {
		<-ctx.Done()
		_, _, _ = o.TCP.Close(), o.HTTP.Close(), o.UDP.Close()
	}()
	for {
		c, err := o.TCP.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // out of descriptors for a moment
			continue
		}
		go serveTCP(c)
	}
}

func serveTCP(c net.Conn) {
	defer c.Close()
	var cmd [1]byte
	if _, err := io.ReadFull(c, cmd[:]); err != nil {
		return
	}
	if cmd[0] == skipHello {
		// The command comes after the ClientHello.
		var rest [4]byte
		if _, err := io.ReadFull(c, rest[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(rest[2])<<8|int64(rest[3])); err != nil {
			return
		}
		if _, err := io.ReadFull(c, cmd[:]); err != nil {
			return
		}
	}
	switch cmd[0] {
	case cmdDownload:
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	case cmdUpload:
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
	case cmdEcho:
		buf := make([]byte, 4<<10)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	case cmdIdle:
		serveIdle(c)
	}
}

// serveIdle answers one byte, and every further byte with an exchange of both directions.
func serveIdle(c net.Conn) {
	var b [1]byte
	for {
		if _, err := c.Write(b[:]); err != nil {
			return
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return
		}
		if exchange(c) != nil {
			return
		}
	}
}

// exchange sends and takes ExchangeSize bytes at once.
func exchange(c net.Conn) error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, ExchangeSize))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, c, ExchangeSize)
	return errors.Join(err, <-sent)
}

func httpServer() *http.Server {
	body := make([]byte, BodySize)
	for i := range body {
		body[i] = 'a' + byte(i%26)
	}
	return &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", strconv.Itoa(BodySize))
		_, _ = w.Write(body)
	})}
}

func (o *Origin) serveUDP() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := o.UDP.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = o.UDP.WriteToUDPAddrPort(buf[:n], from)
		}
	}
}

// Announce prints the bound addresses in the form that ParseOrigin reads.
func (o *Origin) Announce(w io.Writer) {
	fmt.Fprintf(w, "%s %s %s\n", o.TCP.Addr(), o.HTTP.Addr(), o.UDP.LocalAddr())
}

// ParseOrigin reads the line of Announce.
func ParseOrigin(r io.Reader) (tcp, http, udp string, err error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return "", "", "", fmt.Errorf("origin did not start: %w", err)
	}
	_, err = fmt.Sscan(line, &tcp, &http, &udp)
	return tcp, http, udp, err
}
