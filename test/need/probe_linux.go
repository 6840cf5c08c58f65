package need

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

var probes = map[Feature]func() error{
	IPv6:          probeIPv6,
	NetNamespaces: func() error { return inNamespace(syscall.CLONE_NEWNET, "true") },
	Mounts: func() error {
		return inNamespace(syscall.CLONE_NEWNS, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", os.TempDir())
	},
	Netfilter: func() error { return inNamespace(syscall.CLONE_NEWNET, "nft", "add", "table", "inet", "probe") },
	Netem: func() error {
		return inNamespace(syscall.CLONE_NEWNET, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
	},
	BBR: func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
		if err == nil && !strings.Contains(string(b), "bbr") {
			err = errors.New("only " + strings.TrimSpace(string(b)))
		}
		return err
	},
	UDPGSO: func() error {
		return withSocket(unix.SOCK_DGRAM, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1200)
		})
	},
	RTOMin: func() error {
		const tcpRTOMinUS = 45
		return withSocket(unix.SOCK_STREAM, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMinUS, 5000)
		})
	},
	TUN: func() error {
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	},
}

func probeIPv6() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}

func withSocket(kind int, try func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return try(fd)
}

// inNamespace tries a command in namespaces of its own, so that a probe leaves nothing behind.
func inNamespace(flags uintptr, name string, args ...string) error {
	path := Find(name)
	if path == "" {
		return errors.New("no program " + name)
	}
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&syscall.CLONE_NEWNS != 0 {
		cmd.SysProcAttr.Unshareflags, cmd.SysProcAttr.Cloneflags = flags, 0
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		err = errors.New(strings.TrimSpace(string(out)))
	}
	return err
}
