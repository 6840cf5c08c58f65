package sniff

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/crypto/cryptobyte"
)

// hello is the first flight of a real client.
func hello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(a, cfg).Handshake()
	}()
	buf := make([]byte, 64<<10)
	n, err := b.Read(buf)
	_, _ = a.Close(), b.Close()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// refragment puts the handshake bytes of one record into records of size bytes.
func refragment(raw []byte, size int) []byte {
	var out []byte
	for body := range slices.Chunk(raw[5:], size) {
		out = append(out, 22, 3, 1, byte(len(body)>>8), byte(len(body)))
		out = append(out, body...)
	}
	return out
}

// echConfigList is a valid list whose public name is name.
func echConfigList(t testing.TB, name string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint16(extECH)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddUint8(1)
			b.AddUint16(0x0020) // DHKEM(X25519)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(key.PublicKey().Bytes()) })
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddUint16(1); b.AddUint16(1) })
			b.AddUint8(32)
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
			b.AddUint16LengthPrefixed(func(*cryptobyte.Builder) {})
		})
	})
	return b.BytesOrPanic()
}

// withExtensions is a hand-made hello with these extensions.
func withExtensions(exts ...[]byte) []byte {
	var b cryptobyte.Builder
	b.AddBytes([]byte{22, 3, 1})
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint8(clientHello)
		b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddUint16(0x0303)
			b.AddBytes(make([]byte, 32))
			b.AddUint8LengthPrefixed(func(*cryptobyte.Builder) {})
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddUint16(0x0a0a); b.AddUint16(0x1301) })
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddUint8(0) })
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
				for _, e := range exts {
					b.AddBytes(e)
				}
			})
		})
	})
	return b.BytesOrPanic()
}

func extension(typ uint16, data string) []byte {
	var b cryptobyte.Builder
	b.AddUint16(typ)
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(data)) })
	return b.BytesOrPanic()
}

func sni(name string) []byte {
	n := len(name)
	return extension(extServerName, string([]byte{byte((n + 3) >> 8), byte(n + 3), 0, byte(n >> 8), byte(n)})+name)
}

func TestRead(t *testing.T) {
	plain := &tls.Config{ServerName: "app.example.com", NextProtos: []string{"h2", "http/1.1"}}
	var many []string
	for i := range 40 {
		many = append(many, strings.Repeat(string(rune('a'+i%26)), 90))
	}
	big := hello(t, &tls.Config{ServerName: "app.example.com", NextProtos: many})
	if len(big) < 4096 {
		t.Fatalf("the big hello has only %d bytes", len(big))
	}
	pq := hello(t, &tls.Config{ServerName: "app.example.com", CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}})
	if len(pq) < 1216 {
		t.Fatalf("the post-quantum hello has only %d bytes", len(pq))
	}
	for _, c := range []struct {
		name string
		raw  []byte
		want Hello
	}{
		{"D16 plain", hello(t, plain), Hello{ServerName: "app.example.com", ALPN: []string{"h2", "http/1.1"}}},
		{"D16 split over two TLS records", refragment(hello(t, plain), 100), Hello{ServerName: "app.example.com", ALPN: []string{"h2", "http/1.1"}}},
		{"D16 split over records of one byte", refragment(withExtensions(sni("a.b")), 1), Hello{ServerName: "a.b"}},
		{"D16 four kilobytes", big, Hello{ServerName: "app.example.com", ALPN: many}},
		{"D16 post-quantum key share", pq, Hello{ServerName: "app.example.com"}},
		{"D16 without SNI", hello(t, &tls.Config{InsecureSkipVerify: true}), Hello{}},
		{"D16 TLS 1.2 only", hello(t, &tls.Config{ServerName: "old.example.com", MaxVersion: tls.VersionTLS12}), Hello{ServerName: "old.example.com"}},
		{
			"D16 with ECH, the outer name counts",
			hello(t, &tls.Config{ServerName: "secret.example.com", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfigList(t, "outer.example.com")}),
			Hello{ServerName: "outer.example.com", ECH: true},
		},
		{"D16 GREASE extensions", withExtensions(extension(0x0a0a, ""), sni("g.example.com"), extension(0xfafa, "\x00")), Hello{ServerName: "g.example.com"}},
		{"R02 upper case and trailing dot", withExtensions(sni("EXAMPLE.com.")), Hello{ServerName: "example.com"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tail := []byte("early data")
			for _, r := range []io.Reader{
				bytes.NewReader(c.raw),
				iotest.OneByteReader(bytes.NewReader(c.raw)),
				iotest.HalfReader(bytes.NewReader(c.raw)),
				iotest.DataErrReader(bytes.NewReader(c.raw)),
				bytes.NewReader(append(slices.Clone(c.raw), tail...)),
			} {
				h, raw, err := Read(r, 16<<10)
				if err != nil {
					t.Fatal(err)
				}
				if h.ServerName != c.want.ServerName || !slices.Equal(h.ALPN, c.want.ALPN) || h.ECH != c.want.ECH {
					t.Fatalf("read %+v, want %+v", *h, c.want)
				}
				rest, _ := io.ReadAll(r)
				if whole := append(raw, rest...); !bytes.HasPrefix(whole, c.raw) {
					t.Fatal("what was read is not what was sent")
				}
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	good := withExtensions(sni("a.example.com"))
	for _, c := range []struct {
		name string
		raw  []byte
		want error
	}{
		{"plain HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), ErrNotTLS},
		{"I11 PROXY v1", []byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), ErrNotTLS},
		{"nothing", nil, io.ErrUnexpectedEOF},
		{"cut short", good[:len(good)-1], io.ErrUnexpectedEOF},
		{"SSL 2", []byte{22, 2, 0, 0, 1}, ErrMalformed},
		{"empty record", []byte{22, 3, 1, 0, 0}, ErrMalformed},
		{"record too long", []byte{22, 3, 1, 0x40, 1}, ErrMalformed},
		{"server hello", []byte{22, 3, 1, 0, 5, 2}, ErrMalformed},
		{"alert amid the hello", append(slices.Clone(refragment(good, 20)[:25]), 21, 3, 1, 0, 2), ErrMalformed},
		{"two names", withExtensions(sni("a.example.com"), sni("b.example.com")), ErrMalformed},
		{"trailing bytes in the name", withExtensions(extension(extServerName, "\x00\x04\x00\x00\x01ax")), ErrMalformed},
		{"IP address as name", withExtensions(sni("192.0.2.1")), ErrServerName},
		{"NUL in the name", withExtensions(sni("a\x00.example.com")), ErrServerName},
		{"D16 over the size cap", hello(t, &tls.Config{ServerName: "a.b", NextProtos: slices.Repeat([]string{strings.Repeat("x", 200)}, 90)}), ErrTooLarge},
		{"D16 endless tiny records", bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 4096), ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, r := range []io.Reader{bytes.NewReader(c.raw), iotest.OneByteReader(bytes.NewReader(c.raw))} {
				h, raw, err := Read(r, 16<<10)
				if !errors.Is(err, c.want) {
					t.Fatalf("got %v and %v, want %v", h, err, c.want)
				}
				if len(raw) > 16<<10 {
					t.Fatalf("kept %d bytes", len(raw))
				}
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "app.example.com", NextProtos: []string{"h2"}}))
	f.Add(refragment(withExtensions(sni("a.example.com"), extension(extALPN, "\x00\x03\x02h2")), 7))
	f.Add(withExtensions(extension(extECH, "x"), extension(0x0a0a, "")))
	f.Add([]byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		const limit = 4096
		h, kept, err := Read(bytes.NewReader(raw), limit)
		if len(kept) > limit || !bytes.HasPrefix(raw, kept) {
			t.Fatal("what was kept is not what was read")
		}
		h1, _, err1 := Read(iotest.OneByteReader(bytes.NewReader(raw)), limit)
		if (err == nil) != (err1 == nil) {
			t.Fatalf("segmentation decides: %v against %v", err, err1)
		}
		if err == nil && (h.ServerName != h1.ServerName || !slices.Equal(h.ALPN, h1.ALPN)) {
			t.Fatalf("segmentation decides: %+v against %+v", h, h1)
		}
	})
}
