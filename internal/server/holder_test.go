package server_test

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/server"
)

func TestPortHolder(t *testing.T) {
	if runtime.GOOS != "linux" {
		// The answer is "" elsewhere.
		return
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(ln.Addr().(*net.TCPAddr).Port)
	if got := server.PortHolder("tcp", port); !strings.Contains(got, "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("holder %q, want this process (%d)", got, os.Getpid())
	}
	ln.Close()
	if got := server.PortHolder("tcp", port); got != "" {
		t.Errorf("holder of a free port: %q", got)
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	if got := server.PortHolder("udp", uint16(pc.LocalAddr().(*net.UDPAddr).Port)); got == "" {
		t.Error("no holder of a UDP port")
	}
}
