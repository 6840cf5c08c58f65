// Package netlab builds small networks for tests: network namespaces joined by an emulated path.
package netlab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/netlab/netem"
)

// End is one namespace of a lab.
type End struct {
	// Namespace is its name for `ip netns`.
	Namespace string
	// Addr is its address on the path to the other end.
	Addr string
}

// Pair is two namespaces with one path between them.
type Pair struct {
	A, B End
	*netem.Link
}

// The addresses of the two ends.
const (
	AddrA = "10.77.0.1"
	AddrB = "10.77.0.2"
)

var made atomic.Int64

// Join makes two namespaces joined by a path of 1,500-byte packets that behaves like p in both
// directions, and removes everything when the test ends.
func Join(t testing.TB, p netem.Path) *Pair {
	t.Helper()
	need.RootUser(t, "network namespaces")
	need.Kernel(t, need.NetNamespaces)
	need.Kernel(t, need.TUN)
	need.Program(t, "ip")
	sweep(t)
	name := fmt.Sprintf("adit-%d-%d", os.Getpid(), made.Add(1))
	lab := &Pair{A: End{name + "a", AddrA}, B: End{name + "b", AddrB}}
	for _, e := range []End{lab.A, lab.B} {
		ip(t, "netns", "add", e.Namespace)
		t.Cleanup(func() { ip(t, "netns", "delete", e.Namespace) })
	}
	link, err := netem.Open(netem.Device{Namespace: lab.A.Namespace, Name: "path"}, netem.Device{Namespace: lab.B.Namespace, Name: "path"})
	if err != nil {
		t.Fatal(err)
	}
	link.Set(p, p)
	lab.Link = link
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- link.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, e := range []End{lab.A, lab.B} {
		ip(t, "-n", e.Namespace, "link", "set", "lo", "up")
		ip(t, "-n", e.Namespace, "address", "add", e.Addr+"/24", "dev", "path")
		// The default queue of a TUN device is shorter than a fast path at 40 ms holds.
		ip(t, "-n", e.Namespace, "link", "set", "path", "mtu", "1500", "txqueuelen", "10000", "up")
	}
	return lab
}

var ours = regexp.MustCompile(`^adit-(\d+)-\d+[ab]$`)

// sweep removes what a run that was killed has left.
func sweep(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir("/var/run/netns")
	if err != nil {
		return // none was ever made
	}
	for _, e := range entries {
		if m := ours.FindStringSubmatch(e.Name()); m != nil {
			if _, err := os.Stat("/proc/" + m[1]); err != nil {
				ip(t, "netns", "delete", e.Name())
			}
		}
	}
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(need.Find("ip"), args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Exec is the command line that runs a program in the namespace, without the program.
func (e End) Exec() []string { return []string{need.Find("ip"), "netns", "exec", e.Namespace} }

// Do runs f on a thread in the namespace: sockets that f opens belong there.
func (e End) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open("/var/run/netns/" + e.Namespace)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace %q: %w", e.Namespace, err)
			}
			return f()
		}()
	}()
	return <-done
}

// Sysctl sets a value below net. in the namespace, e.g. "ipv4.tcp_congestion_control".
func (e End) Sysctl(name, value string) error {
	return e.Do(func() error {
		// The kernel answers /proc/sys/net for the namespace of the calling thread.
		return os.WriteFile("/proc/sys/net/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0o644)
	})
}

// AllowCongestion lets namespaces use a congestion control that the host has but does not offer
// to them, until the test ends. It reports false where the host has none of that name.
func AllowCongestion(t testing.TB, name string) bool {
	t.Helper()
	const dir = "/proc/sys/net/ipv4/"
	has := func(file string) (string, bool) {
		b, err := os.ReadFile(dir + file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b)), slices.Contains(strings.Fields(string(b)), name)
	}
	if _, available := has("tcp_available_congestion_control"); !available {
		return false
	}
	before, allowed := has("tcp_allowed_congestion_control")
	if allowed {
		return true
	}
	set := func(value string) {
		if err := os.WriteFile(dir+"tcp_allowed_congestion_control", []byte(value), 0o644); err != nil {
			t.Error(err)
		}
	}
	set(before + " " + name)
	t.Cleanup(func() { set(before) })
	return true
}
