package need

import "testing"

// Feature is something that only the kernel or the sandbox around a test can give.
type Feature string

// The kernel features that a strict run may lack. Nothing else may be skipped there.
const (
	IPv6          Feature = "IPv6 on loopback"
	NetNamespaces Feature = "network namespaces"
	Mounts        Feature = "mounting a tmpfs"
	Netfilter     Feature = "nftables in the kernel"
	BBR           Feature = "the bbr congestion control"
	Netem         Feature = "netem queueing"
	UDPGSO        Feature = "UDP segmentation offload"
	RTOMin        Feature = "TCP_RTO_MIN_US on sockets"
	TUN           Feature = "TUN devices"
)

// Kernel skips the test where the kernel lacks the feature, also in a strict run.
func Kernel(t testing.TB, f Feature) {
	t.Helper()
	p, known := probes[f]
	if !known {
		t.Fatalf("test/need does not know the kernel feature %q", f)
	}
	if err := p(); err != nil {
		t.Skipf("kernel lacks %s: %v", f, err)
	}
}
