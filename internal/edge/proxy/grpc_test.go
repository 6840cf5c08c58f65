package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// grpcOrigin serves test.Echo with a unary call and a bidirectional stream.
func grpcOrigin(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := &wrapperspb.StringValue{}
			if err := dec(in); err != nil {
				return nil, err
			}
			if err := grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "end")); err != nil {
				return nil, err
			}
			if in.GetValue() == "fail" {
				return nil, status.Error(codes.FailedPrecondition, "no — not now")
			}
			return in, nil
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Late", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(&wrapperspb.StringValue{}); err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond) // nothing is sent, no header either
			return s.SendMsg(wrapperspb.String("late"))
		}}, {StreamName: "Bidi", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			s.SetTrailer(metadata.Pairs("x-trailer", "end"))
			for {
				in := &wrapperspb.StringValue{}
				if err := s.RecvMsg(in); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
				if err := s.SendMsg(in); err != nil {
					return err
				}
			}
		}}},
	}, nil)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return "h2c://" + l.Addr().String()
}

func (r *rig) grpc(t *testing.T) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///a.example.test:443",
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: r.roots, ServerName: "a.example.test"})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestGRPC(t *testing.T) {
	bidi := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	t.Run("H05 gRPC unary calls, trailers and errors", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", grpcOrigin(t))
		c := r.grpc(t)
		out, trailer := &wrapperspb.StringValue{}, metadata.MD{}
		msg := strings.Repeat("x", 100<<10)
		if err := c.Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String(msg), out, grpc.Trailer(&trailer)); err != nil || out.GetValue() != msg {
			t.Errorf("%v, %d bytes", err, len(out.GetValue()))
		}
		if strings.Join(trailer.Get("x-trailer"), "") != "end" {
			t.Errorf("trailers %v", trailer)
		}
		for range 100 { // a flush may come between a status and the end of its stream
			err := c.Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String("fail"), out, grpc.Trailer(&trailer))
			if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "no — not now" {
				t.Fatalf("%v", err)
			}
		}
	})
	t.Run("H04 every message of a gRPC stream is delivered when it is written", func(t *testing.T) {
		// The visitor may be silent for longer than a body may stall.
		r := newRig(t, func(c *Config) { c.BodyIdle, c.ResponseHeader = 50*time.Millisecond, 50*time.Millisecond })
		r.put("a.example.test", grpcOrigin(t))
		s, err := r.grpc(t).NewStream(t.Context(), bidi, "/test.Echo/Bidi")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			in, out := wrapperspb.String(fmt.Sprintf("message %d of 20 bytes", i)), &wrapperspb.StringValue{}
			time.Sleep(60 * time.Millisecond)
			if err := s.SendMsg(in); err != nil {
				t.Fatal(err)
			}
			within(t, time.Second, "the echo", func() {
				if err := s.RecvMsg(out); err != nil || out.GetValue() != in.GetValue() {
					t.Errorf("%v %q", err, out.GetValue())
				}
			})
		}
		_ = s.CloseSend()
		if err := s.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
			t.Errorf("end: %v", err)
		}
		if strings.Join(s.Trailer().Get("x-trailer"), "") != "end" {
			t.Errorf("trailers %v", s.Trailer())
		}
	})
	t.Run("H04 a gRPC stream may be silent from its first moment on", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ResponseHeader = 50 * time.Millisecond })
		r.put("a.example.test", grpcOrigin(t))
		s, err := r.grpc(t).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Echo/Late")
		if err != nil {
			t.Fatal(err)
		}
		out := &wrapperspb.StringValue{}
		if err := errors.Join(s.SendMsg(wrapperspb.String("x")), s.CloseSend(), s.RecvMsg(out)); err != nil || out.GetValue() != "late" {
			t.Errorf("%v %q", err, out.GetValue())
		}
	})
	t.Run("errors of the edge are gRPC statuses", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", "h2c://127.0.0.1:1")
		r.source.Set()
		var h metadata.MD
		err := r.grpc(t).Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String("x"), &wrapperspb.StringValue{}, grpc.Trailer(&h))
		if s := status.Convert(err); s.Code() != codes.Unavailable || !strings.Contains(s.Message(), "no_agent") {
			t.Errorf("%v", err)
		}
	})
}
