package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/adit-dev/adit/test/stack"
)

// testService answers with trailers and streams at its own pace.
type testService struct {
	testpb.UnimplementedTestServiceServer
}

func (testService) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "42"))
	if s := r.GetResponseStatus(); s.GetCode() != 0 {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	return &testpb.SimpleResponse{Payload: r.GetPayload()}, nil
}

func (testService) FullDuplexCall(s testpb.TestService_FullDuplexCallServer) error {
	s.SetTrailer(metadata.Pairs("x-end", "yes"))
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

func (testService) StreamingOutputCall(r *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
	for _, p := range r.GetResponseParameters() {
		time.Sleep(time.Duration(p.GetIntervalUs()) * time.Microsecond)
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	return nil
}

func TestGRPC(t *testing.T) {
	l := listen(t)
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, testService{})
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("grpc.localhost", "h2c://"+l.Addr().String()),
		stack.HTTP("nogrpc.localhost", "h2c://127.0.0.1:1"),
	}})
	client := func(host string) testpb.TestServiceClient {
		conn, err := grpc.NewClient("passthrough:///"+host+":"+r.Port(),
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: r.Roots()})),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", r.HTTPS)
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return testpb.NewTestServiceClient(conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := client("grpc.localhost")

	t.Run("H05 unary calls carry body and trailers", func(t *testing.T) {
		var trailer metadata.MD
		body := randomBytes(t, 1<<20)
		got, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}}, grpc.Trailer(&trailer))
		if err != nil || string(got.GetPayload().GetBody()) != string(body) || len(trailer["x-sum"]) != 1 {
			t.Fatalf("%v, trailer %v", err, trailer)
		}
		_, err = c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "no: ä"}})
		if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "no: ä" {
			t.Fatalf("status %v", err)
		}
	})
	t.Run("H05 bidirectional streams carry trailers", func(t *testing.T) {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			body := make([]byte, 1+i*50)
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: body}}); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Recv(); err != nil || len(got.GetPayload().GetBody()) != len(body) {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) || len(s.Trailer()["x-end"]) != 1 {
			t.Fatalf("end: %v, trailer %v", err, s.Trailer())
		}
	})
	t.Run("H04 every message comes when it is sent", func(t *testing.T) {
		const each = 200 * time.Millisecond
		req := &testpb.StreamingOutputCallRequest{}
		for range 4 {
			req.ResponseParameters = append(req.ResponseParameters, &testpb.ResponseParameters{Size: 20, IntervalUs: int32(each.Microseconds())})
		}
		s, err := c.StreamingOutputCall(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		start, last := time.Now(), time.Time{}
		for i := range 4 {
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			if i == 0 && time.Since(start) > 3*each {
				t.Errorf("the first message took %s: it waited for others", time.Since(start))
			}
			last = time.Now()
		}
		if last.Sub(start) < 3*each {
			t.Errorf("four messages in %s: the origin paces them at %s", last.Sub(start), each)
		}
	})
	t.Run("our errors are gRPC statuses", func(t *testing.T) {
		_, err := client("nogrpc.localhost").UnaryCall(ctx, &testpb.SimpleRequest{})
		if s := status.Convert(err); s.Code() != codes.Unavailable {
			t.Fatalf("status %v", err)
		}
	})
}
