package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"

	"github.com/adit-dev/adit/internal/reason"
)

// handshake speaks TLS to s over c, offering alpn.
func (d *Dialer) handshake(ctx context.Context, s *Spec, c net.Conn, alpn []string) (*tls.Conn, *reason.Error) {
	name := s.ServerName
	if name == "" {
		name = s.Host
	}
	roots, sessions := d.roots, d.sessions
	if s.Roots != nil {
		// A session that other roots verified must not be resumed.
		roots, sessions = s.Roots, s.sessions
	}
	t := tls.Client(c, &tls.Config{
		ServerName:         name,
		RootCAs:            roots,
		NextProtos:         alpn,
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: sessions,
		// Only where the tunnel asks for it.
		InsecureSkipVerify: s.InsecureSkipVerify, //nolint:gosec
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, tlsError(s, name, err)
	}
	return t, nil
}

// tlsError says what went wrong in the words of whoever configured the origin.
func tlsError(s *Spec, name string, err error) *reason.Error {
	var (
		plain     tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		op        *net.OpError
		timeout   net.Error
	)
	fail := func(format string, args ...any) *reason.Error {
		return reason.New(reason.OriginTLS, reason.HopOrigin, format, args...).Safe()
	}
	switch {
	case errors.As(err, &plain):
		what := "tcp"
		if s.Scheme == SchemeHTTPS {
			what = "http"
		}
		return fail("%s answered in clear text, not TLS; if that is right, write the origin as %s://%s", s, what, hostPort(s))
	case errors.As(err, &authority):
		return fail("the certificate of %s is signed by an authority that this agent does not trust; give the agent its CA certificate with --origin-ca-file, or the tunnel (adit tunnel set --origin-ca-file)", s)
	case errors.As(err, &host):
		return fail("the certificate of %s is not for %q (%v); set origin_server_name to a name it has", s, name, host)
	case errors.As(err, &invalid):
		return fail("the certificate of %s is not valid: %v", s, invalid)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return reason.New(reason.OriginTimeout, reason.HopOrigin, "%s accepted the connection but did not finish the TLS handshake in time; does it speak TLS on this port?", s).Safe()
	case errors.As(err, &op) && op.Op == "remote error":
		return fail("%s refused the TLS handshake for server name %q: %v", s, name, op.Err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fail("%s closed the connection during the TLS handshake; does it speak TLS on this port?", s)
	}
	return reason.Wrap(err, reason.OriginTLS, reason.HopOrigin, "TLS with %s failed", s).Safe()
}

func hostPort(s *Spec) string {
	return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
}
