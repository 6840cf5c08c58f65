// Package sniff reads a TLS ClientHello off a connection without taking part in the handshake:
// who is called, and in which protocols. What was read is kept so that it can be replayed.
package sniff

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/cryptobyte"

	"github.com/adit-dev/adit/internal/hostname"
)

// Hello is what a ClientHello says.
type Hello struct {
	// ServerName is normalized; empty when the client names nobody.
	ServerName string
	// ALPN are the offered protocols in the client's order.
	ALPN []string
	// ECH is true when the hello carries an encrypted inner hello; ServerName is the outer one.
	ECH bool
}

// Offers reports whether the client offers protocol.
func (h *Hello) Offers(protocol string) bool {
	for _, p := range h.ALPN {
		if p == protocol {
			return true
		}
	}
	return false
}

// Why a connection has no readable ClientHello.
var (
	// ErrNotTLS: the first byte does not begin a TLS handshake.
	ErrNotTLS = errors.New("not a TLS handshake")
	// ErrTooLarge: the ClientHello does not end within the limit.
	ErrTooLarge = errors.New("ClientHello is larger than the limit")
	// ErrMalformed: the bytes are no ClientHello.
	ErrMalformed = errors.New("malformed ClientHello")
	// ErrServerName: a ClientHello whose server name nothing can be called (an IP address, say).
	ErrServerName = errors.New("unusable server name")
)

const (
	recordHeader    = 5
	recordHandshake = 22
	maxRecord       = 1 << 14
	messageHeader   = 4
	clientHello     = 1

	extServerName = 0
	extALPN       = 16
	extECH        = 0xfe0d
)

// Read reads from r until a whole ClientHello is there, in however many segments and records it
// comes. raw is everything read, also with an error: at most limit bytes. Bytes that followed the
// hello in the same read are part of it.
func Read(r io.Reader, limit int) (h *Hello, raw []byte, err error) {
	a := assembler{limit: limit}
	buf := make([]byte, 0, min(2048, limit))
	for {
		if len(buf) == limit {
			return nil, buf, ErrTooLarge
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*cap(buf), limit))
			copy(grown, buf)
			buf = grown
		}
		n, rerr := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		msg, done, err := a.feed(buf)
		if err != nil {
			return nil, buf, err
		}
		if done {
			h, err := Parse(msg)
			return h, buf, err
		}
		if rerr != nil {
			if errors.Is(rerr, io.EOF) {
				rerr = io.ErrUnexpectedEOF
			}
			return nil, buf, fmt.Errorf("read ClientHello: %w", rerr)
		}
	}
}

// assembler puts a handshake message together from records.
type assembler struct {
	// next is where the next record starts in what was read.
	next  int
	msg   []byte
	limit int
}

// feed looks at everything read so far and returns the message (with its header) once complete.
func (a *assembler) feed(raw []byte) (msg []byte, done bool, err error) {
	for {
		rec := raw[a.next:]
		if len(rec) > 0 && rec[0] != recordHandshake {
			if a.next == 0 {
				return nil, false, ErrNotTLS
			}
			return nil, false, fmt.Errorf("%w: record type %d amid the handshake", ErrMalformed, rec[0])
		}
		if len(rec) > 1 && rec[1] != 3 {
			return nil, false, fmt.Errorf("%w: record version %d", ErrMalformed, rec[1])
		}
		if len(rec) < recordHeader {
			return nil, false, nil
		}
		n := int(rec[3])<<8 | int(rec[4])
		if n == 0 || n > maxRecord {
			return nil, false, fmt.Errorf("%w: record of %d bytes", ErrMalformed, n)
		}
		body := rec[recordHeader:min(len(rec), recordHeader+n)]
		if len(a.msg) == 0 && len(body) > 0 && body[0] != clientHello {
			return nil, false, fmt.Errorf("%w: handshake message type %d", ErrMalformed, body[0])
		}
		if len(body) < n {
			return nil, false, nil
		}
		a.msg = append(a.msg, body...)
		a.next += recordHeader + n
		if len(a.msg) < messageHeader {
			continue
		}
		want := messageHeader + int(a.msg[1])<<16 + int(a.msg[2])<<8 + int(a.msg[3])
		if want > a.limit {
			return nil, false, ErrTooLarge
		}
		if len(a.msg) >= want {
			return a.msg[:want], true, nil
		}
	}
}

// Parse reads a ClientHello message with its handshake header.
func Parse(msg []byte) (*Hello, error) {
	s := cryptobyte.String(msg)
	var (
		kind                              uint8
		body, session, suites, compressed cryptobyte.String
	)
	if !s.ReadUint8(&kind) || kind != clientHello || !s.ReadUint24LengthPrefixed(&body) || !s.Empty() ||
		!body.Skip(2+32) || // legacy version, random
		!body.ReadUint8LengthPrefixed(&session) ||
		!body.ReadUint16LengthPrefixed(&suites) ||
		!body.ReadUint8LengthPrefixed(&compressed) {
		return nil, ErrMalformed
	}
	h := &Hello{}
	if body.Empty() {
		return h, nil
	}
	var exts cryptobyte.String
	if !body.ReadUint16LengthPrefixed(&exts) || !body.Empty() {
		return nil, ErrMalformed
	}
	for !exts.Empty() {
		var typ uint16
		var data cryptobyte.String
		if !exts.ReadUint16(&typ) || !exts.ReadUint16LengthPrefixed(&data) {
			return nil, ErrMalformed
		}
		var err error
		switch typ {
		case extServerName:
			err = h.serverName(data)
		case extALPN:
			err = h.alpn(data)
		case extECH:
			h.ECH = true
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *Hello) serverName(data cryptobyte.String) error {
	var list cryptobyte.String
	if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || list.Empty() {
		return fmt.Errorf("%w: server name", ErrMalformed)
	}
	for !list.Empty() {
		var typ uint8
		var name cryptobyte.String
		if !list.ReadUint8(&typ) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return fmt.Errorf("%w: server name", ErrMalformed)
		}
		if typ != 0 {
			continue
		}
		if h.ServerName != "" {
			return fmt.Errorf("%w: two server names", ErrMalformed)
		}
		n, err := hostname.Normalize(string(name))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrServerName, err)
		}
		h.ServerName = n
	}
	return nil
}

func (h *Hello) alpn(data cryptobyte.String) error {
	var list cryptobyte.String
	if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || list.Empty() {
		return fmt.Errorf("%w: protocol list", ErrMalformed)
	}
	for !list.Empty() {
		var p cryptobyte.String
		if !list.ReadUint8LengthPrefixed(&p) || p.Empty() {
			return fmt.Errorf("%w: protocol list", ErrMalformed)
		}
		h.ALPN = append(h.ALPN, string(p))
	}
	return nil
}
