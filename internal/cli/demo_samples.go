package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// samples are the origins of the demo, on free ports of loopback.
type samples struct {
	web, secure, tcp net.Listener
	udp              net.PacketConn
	servers          []*http.Server
	wg               sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func startSamples(cert tls.Certificate, log *slog.Logger) (s *samples, err error) {
	s = &samples{conns: map[net.Conn]struct{}{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.web, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if s.secure, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if s.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if s.udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.serve(s.web, &samplePage{title: "Hello from behind the tunnel"}, log)
	tc := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	s.serve(tls.NewListener(s.secure, tc), &samplePage{title: "Hello from an origin that holds its own key"}, log)
	s.wg.Go(s.echoTCP)
	s.wg.Go(s.echoUDP)
	return s, nil
}

func (s *samples) serve(ln net.Listener, h http.Handler, log *slog.Logger) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	s.servers = append(s.servers, srv)
	s.wg.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("sample page", "err", err)
		}
	})
}

// echoTCP sends back what it gets, then the end.
func (s *samples) echoTCP() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *samples) echoUDP() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		_, _ = s.udp.WriteTo(buf[:n], from)
	}
}

func (s *samples) close() {
	for _, srv := range s.servers {
		_ = srv.Close()
	}
	for _, ln := range []net.Listener{s.web, s.secure, s.tcp} {
		if ln != nil {
			_ = ln.Close()
		}
	}
	if s.udp != nil {
		_ = s.udp.Close()
	}
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// samplePage shows what an origin sees of its visitor.
type samplePage struct{ title string }

func (p *samplePage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/robots.txt" {
		_, _ = io.WriteString(w, "User-agent: *\nDisallow: /\n")
		return
	}
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	visitor := r.Header.Get("X-Forwarded-For")
	if visitor == "" {
		visitor = r.RemoteAddr
	}
	fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Adit demo</title>\n<h1>%s</h1>\n<p>Host %s, visitor %s, %s.</p>\n</html>\n",
		html.EscapeString(p.title), html.EscapeString(r.Host), html.EscapeString(visitor), html.EscapeString(r.Proto))
}
