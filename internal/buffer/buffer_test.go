package buffer_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/buffer"
)

func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestSocket(t *testing.T) {
	a, b := pair(t)
	s := buffer.NewSocket(b)
	var l buffer.Loan
	if _, err := a.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	n, err := s.ReadLoan(&l)
	if err != nil || string(l.Bytes()[:n]) != "one" {
		t.Fatalf("%q, %v", l.Bytes()[:n], err)
	}
	l.Return()

	_ = b.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, err := s.ReadLoan(&l); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || l != (buffer.Loan{}) {
		t.Errorf("at the deadline: %d, %v, loan %v", n, err, l)
	}
	_ = b.SetReadDeadline(time.Time{})

	_ = a.CloseWrite()
	if n, err := s.ReadLoan(&l); n != 0 || !errors.Is(err, io.EOF) || l != (buffer.Loan{}) {
		t.Errorf("at the end: %d, %v, loan %v", n, err, l)
	}
}

func TestSocketReset(t *testing.T) {
	a, b := pair(t)
	_ = a.SetLinger(0)
	_ = a.Close()
	var l buffer.Loan
	if n, err := buffer.NewSocket(b).ReadLoan(&l); n != 0 || !errors.Is(err, syscall.ECONNRESET) || l != (buffer.Loan{}) {
		t.Errorf("after a reset: %d, %v, loan %v", n, err, l)
	}
}

func TestRead(t *testing.T) {
	var l buffer.Loan
	r := strings.NewReader("two")
	n, err := buffer.Read(r, &l)
	if err != nil || string(l.Bytes()[:n]) != "two" {
		t.Fatalf("%d, %v", n, err)
	}
	l.Return()
	if n, err := buffer.Read(r, &l); n != 0 || !errors.Is(err, io.EOF) || l != (buffer.Loan{}) {
		t.Errorf("at the end: %d, %v, loan %v", n, err, l)
	}
}
