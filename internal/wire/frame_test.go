package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/wire"
)

var header = &wirev1.StreamHeader{
	StreamId: 7, TunnelId: "0123456789abcdef", Origin: 2, Kind: wirev1.Kind_KIND_HTTP, Class: wirev1.Class_CLASS_BULK,
	Alpn: []string{"h2"}, VisitorAddress: "[2001:db8::1]:4711", EdgeAddress: "192.0.2.1:443", ServerName: "a.example.com",
}

func TestHeader(t *testing.T) {
	b, err := wire.AppendHeader([]byte("before"), header)
	if err != nil {
		t.Fatal(err)
	}
	r := strings.NewReader(string(b[len("before"):]) + "payload")
	got, err := wire.ReadHeader(r)
	if err != nil || !proto.Equal(got, header) {
		t.Fatalf("%v, %v", got, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "payload" {
		t.Fatalf("the reader went past the header: %q left", rest)
	}
	for n := range len(b) - len("before") {
		if _, err := wire.ReadHeader(bytes.NewReader(b[len("before") : len("before")+n])); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestLimits(t *testing.T) {
	long := proto.Clone(header).(*wirev1.StreamHeader)
	long.TraceContext = strings.Repeat("x", wire.MaxHeader)
	if b, err := wire.AppendHeader(nil, long); !errors.Is(err, wire.ErrTooLarge) || len(b) > 1 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if _, err := wire.ReadHeader(strings.NewReader("\x02\x00\x00\x00\x00")); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Fatalf("unknown version: %v", err)
	}
	if _, err := wire.ReadHeader(strings.NewReader("\x01\x00\x00\x10\x01")); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatalf("4097 bytes: %v", err)
	}
	if _, err := wire.ReadHeader(strings.NewReader("\x01\xff\xff\xff\xff")); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatalf("4 GiB: %v", err)
	}
	if err := wire.WriteFrame(io.Discard, long, 10); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatalf("write: %v", err)
	}
}

func FuzzHeader(f *testing.F) {
	b, _ := wire.AppendHeader(nil, header)
	f.Add(b)
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.ReadHeader(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := wire.AppendHeader(nil, h)
		if err != nil && !errors.Is(err, wire.ErrTooLarge) {
			t.Fatalf("a header that was read does not encode: %v", err)
		}
		if err == nil {
			if h2, err := wire.ReadHeader(bytes.NewReader(again)); err != nil || !proto.Equal(h, h2) {
				t.Fatalf("%v, %v", h2, err)
			}
		}
	})
}

func FuzzControl(f *testing.F) {
	for _, m := range []*wirev1.Control{
		{Message: &wirev1.Control_Ping{Ping: &wirev1.Ping{Nonce: 1, Padding: make([]byte, 64)}}},
		{Message: &wirev1.Control_Serve{Serve: &wirev1.Serve{Sequence: 2, TunnelIds: []string{"a", "b"}}}},
		{Message: &wirev1.Control_Abort{Abort: &wirev1.Abort{StreamId: 3, Code: 1}}},
		{Message: &wirev1.Control_LaneDemand{LaneDemand: &wirev1.LaneDemand{Lanes: 4}}},
		{},
	} {
		b, err := wire.AppendFrame(nil, m, wire.MaxControl)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0, 0x10, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for range 8 {
			m := &wirev1.Control{}
			if err := wire.ReadFrame(r, m, wire.MaxControl); err != nil {
				return
			}
			if _, err := wire.AppendFrame(nil, m, wire.MaxControl); err != nil && !errors.Is(err, wire.ErrTooLarge) {
				t.Fatalf("a frame that was read does not encode: %v", err)
			}
		}
	})
}
