package edge

import (
	"fmt"
	"os"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link/linktest"
)

// BenchmarkChangeOneOf applies a delta of one tunnel to an edge of 100,000.
func BenchmarkChangeOneOf(b *testing.B) {
	key, err := identity.NewNodeKey()
	if err != nil {
		b.Fatal(err)
	}
	path := b.TempDir() + "/snapshot"
	e, err := New(Config{Key: key, Feed: newHubFeed(), HubHost: linktest.HubHost, SnapshotPath: path, SecretKey: make([]byte, 32)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.close() }()
	tok := linktest.NewToken(b)
	const n = 100_000
	all := &hubv1.WatchResponse{Snapshot: true, Complete: true, Revision: 1}
	for i := range n {
		all.Puts = append(all.Puts, tunnelOf(named(newTunnel(tok, fmt.Sprintf("%032x", i), wirev1.Kind_KIND_HTTP, "http://10.0.0.1:80"), fmt.Sprintf("app-%d.example.com", i))))
	}
	begin := time.Now()
	if err := e.apply(all); err != nil {
		b.Fatal(err)
	}
	first := time.Since(begin)
	begin = time.Now()
	e.saveSnapshot()
	saved := time.Since(begin)
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	begin = time.Now()
	if err := e.apply(all); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d tunnels: first snapshot %v, the same again %v, on disk %d KiB in %v", n, first, time.Since(begin), info.Size()>>10, saved)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		t := newTunnel(tok, fmt.Sprintf("%032x", i%n), wirev1.Kind_KIND_HTTP, fmt.Sprintf("http://10.0.0.1:%d", i))
		_ = e.apply(&hubv1.WatchResponse{Complete: true, Revision: uint64(i + 1), Puts: []*hubv1.Resource{tunnelOf(named(t, fmt.Sprintf("app-%d.example.com", i%n)))}})
	}
}
