package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// sshd starts OpenSSH's server for the user who runs the test and returns the flags of its clients.
func sshd(t *testing.T, port int) []string {
	t.Helper()
	progs := need.Program(t, "sshd", "ssh-keygen", "ssh", "scp")
	dir := t.TempDir()
	for _, name := range []string{"host", "client"} {
		run(t, nil, progs[1], "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name))
	}
	pub, err := os.ReadFile(filepath.Join(dir, "client.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// sshd of a root user insists on its privilege separation folder.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conf := fmt.Sprintf(`Port %d
ListenAddress 127.0.0.1
HostKey %s/host
PidFile none
AuthorizedKeysFile %s/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
`, port, dir, dir)
	for name, text := range map[string]string{"sshd_config": conf, "authorized_keys": string(pub)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := stack.Start(t, stack.Command{Name: "sshd", Path: progs[0], Args: []string{"-D", "-e", "-f", filepath.Join(dir, "sshd_config")}})
	p.WaitLog(10*time.Second, "Server listening")
	return []string{"-i", filepath.Join(dir, "client"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"}
}

func TestSSH(t *testing.T) {
	progs := need.Program(t, "ssh", "scp")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	origin, public := freeport.One(t), freeport.One(t)
	flags := sshd(t, origin)
	newRig(t, stack.AgentConfig{TCP: []stack.Service{stack.Port("ssh", public, loopback(origin))}})

	out := run(t, nil, progs[0], append(flags, "-p", fmt.Sprint(public), me.Username+"@127.0.0.1", "echo $SSH_CONNECTION | wc -w")...)
	if out != "4\n" {
		t.Fatalf("ssh printed %q", out)
	}
	t.Run("scp of 200 MB arrives whole", func(t *testing.T) {
		dir := t.TempDir()
		from, up, down := filepath.Join(dir, "from"), filepath.Join(dir, "up"), filepath.Join(dir, "down")
		block := randomBytes(t, 1<<20)
		if err := os.WriteFile(from, bytes.Repeat(block, 200), 0o600); err != nil {
			t.Fatal(err)
		}
		at := me.Username + "@127.0.0.1:"
		scp := append([]string{"-q", "-P", fmt.Sprint(public)}, flags...)
		run(t, nil, progs[1], append(scp, from, at+up)...)
		run(t, nil, progs[1], append(scp, at+up, down)...)
		want := fileSum(t, from)
		for _, f := range []string{up, down} {
			if fileSum(t, f) != want {
				t.Errorf("%s differs from what was sent", filepath.Base(f))
			}
		}
	})
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestTCP(t *testing.T) {
	// The origin reads to the end of input and then answers 10 MB.
	answer := randomBytes(t, 10<<20)
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.Copy(io.Discard, c); err == nil {
					c.Write(answer)
				}
			}()
		}
	}()
	late, echo, first := freeport.One(t), freeport.One(t), freeport.One(t)
	speaks := listen(t)
	go func() {
		for {
			c, err := speaks.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "220 ready\r\n")
			c.Close()
		}
	}()
	r := newRig(t, stack.AgentConfig{TCP: []stack.Service{
		stack.Port("late", late, l.Addr().String()),
		stack.Port("echo", echo, tcpEcho(t)),
		stack.Port("first", first, speaks.Addr().String()),
	}})
	t.Run("D01 a half-closed request gets its whole answer", func(t *testing.T) {
		nc := need.Program(t, "nc")[0]
		got := run(t, bytes.NewReader([]byte("request")), nc, "-N", "127.0.0.1", fmt.Sprint(late))
		if got != string(answer) {
			t.Fatalf("got %d of %d bytes, or others", len(got), len(answer))
		}
	})
	t.Run("D02 100 MB both ways arrive whole", func(t *testing.T) { bothWays(t, loopback(echo), 100<<20) })
	t.Run("the origin may speak first", func(t *testing.T) {
		c, err := net.Dial("tcp", loopback(first))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if b, err := io.ReadAll(c); err != nil || string(b) != "220 ready\r\n" {
			t.Fatalf("%q %v", b, err)
		}
	})
	t.Run("with no agent new connections are reset and counted", func(t *testing.T) {
		r.agent.Kill()
		stack.Eventually(t, 20*time.Second, func() error {
			err := echoOnce(loopback(echo), "anybody?")
			if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
				return nil
			}
			return fmt.Errorf("want a reset, got %v", err)
		})
		if n := r.Metric("adit_edge_connections_total", `kind="tcp"`, "no_agent"); n == 0 {
			t.Error("no connection counted as no_agent")
		}
	})
}

// bothWays sends and receives at once and compares checksums.
func bothWays(t *testing.T, addr string, size int64) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(50 * time.Second))
	block := randomBytes(t, 1<<20)
	sent, got := sha256.New(), sha256.New()
	fail := make(chan error, 1)
	go func() {
		for n := int64(0); n < size; n += int64(len(block)) {
			sent.Write(block)
			if _, err := c.Write(block); err != nil {
				fail <- err
				return
			}
		}
		fail <- c.(*net.TCPConn).CloseWrite()
	}()
	n, err := io.Copy(got, c)
	if err != nil || n != size {
		t.Fatalf("got %d of %d bytes: %v", n, size, err)
	}
	if err := <-fail; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Fatal("other bytes came back")
	}
}

// TestIperf3 runs iperf3 through tunnels in both its modes; its UDP mode needs the same port as its TCP control.
func TestIperf3(t *testing.T) {
	iperf3 := need.Program(t, "iperf3")[0]
	origin, public := freeport.One(t), freeport.One(t)
	stack.Start(t, stack.Command{Name: "iperf3 -s", Path: iperf3, Args: []string{"-s", "-B", "127.0.0.1", "-p", fmt.Sprint(origin), "--forceflush"}}).
		WaitLog(10*time.Second, "Server listening")
	newRig(t, stack.AgentConfig{
		TCP: []stack.Service{stack.Port("iperf", public, loopback(origin))},
		UDP: []stack.Service{stack.Port("iperf", public, loopback(origin))},
	})
	measure := func(t *testing.T, args ...string) iperfResult {
		t.Helper()
		var r iperfResult
		stack.Eventually(t, 30*time.Second, func() error {
			out := run(t, nil, iperf3, append([]string{"-J", "-c", "127.0.0.1", "-p", fmt.Sprint(public), "-t", "2"}, args...)...)
			r = iperfResult{}
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if strings.Contains(r.Error, "busy") { // with the end of the measurement before
				return errors.New(r.Error)
			}
			return nil
		})
		if r.Error != "" {
			t.Fatal(r.Error)
		}
		return r
	}
	for name, args := range map[string][]string{"TCP up": nil, "TCP down": {"-R"}, "TCP four at once": {"-P", "4"}} {
		t.Run(name, func(t *testing.T) {
			got := measure(t, args...).End.SumReceived
			if got.Bytes == 0 {
				t.Fatal("nothing was received")
			}
			t.Logf("%.0f Mbit/s", got.BitsPerSecond/1e6)
		})
	}
	for name, args := range map[string][]string{"UDP up": nil, "UDP down": {"-R"}} {
		t.Run(name, func(t *testing.T) {
			got := measure(t, append([]string{"-u", "-b", "20M", "-l", "1100"}, args...)...).End.Sum
			if got.Packets == 0 || got.LostPercent > 5 {
				t.Fatalf("%+v", got)
			}
			t.Logf("%.1f Mbit/s, %.2f %% lost", got.BitsPerSecond/1e6, got.LostPercent)
		})
	}
}

type iperfResult struct {
	Error string `json:"error"`
	End   struct {
		SumReceived iperfSum `json:"sum_received"`
		Sum         iperfSum `json:"sum"`
	} `json:"end"`
}

type iperfSum struct {
	Bytes         float64 `json:"bytes"`
	BitsPerSecond float64 `json:"bits_per_second"`
	Packets       float64 `json:"packets"`
	LostPercent   float64 `json:"lost_percent"`
}
