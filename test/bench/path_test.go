//go:build bench && linux

package bench

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/netlab"
	"github.com/adit-dev/adit/test/netlab/netem"
)

// path is a scene with visitors and edge at one end of an emulated path, agent and origin at the
// other.
type path struct {
	scene, congestion string
	loss              float64
}

var paths = []path{
	{report.CubicLoss, "cubic", 0.01},
	{report.BBRLoss, "bbr", 0.01},
	{report.NoLoss, "cubic", 0},
}

// pathScenes emulates each path in this process and measures in another one, which runs in the
// namespace of the visitors.
func pathScenes(t *testing.T) {
	matching, err := regexp.Compile(*scenes)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if !matching.MatchString(p.scene) {
			continue
		}
		t.Run(p.scene, func(t *testing.T) {
			if !netlab.AllowCongestion(t, p.congestion) {
				t.Logf("%s is left out: the kernel has no %s", p.scene, p.congestion)
				return
			}
			lab := netlab.Join(t, netem.Path{Delay: 20 * time.Millisecond, Loss: p.loss, Rate: 400e6, Queue: 50 * time.Millisecond})
			for _, e := range []netlab.End{lab.A, lab.B} {
				if err := e.Sysctl("ipv4.tcp_congestion_control", p.congestion); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "raw.json")
			line := append(lab.A.Exec(), self(t), "-test.run", "^TestBench$", "-test.v", "-scene", p.scene, "-far", lab.B.Namespace,
				"-path-length", pathLength.String(), "-only", *only, "-works", *works, "-raw", file, "-path-rounds", strconv.Itoa(*pathRounds))
			out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
			part, err := report.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			run.Add(part)
			ab, ba := lab.Stats()
			t.Logf("the path: %+v towards the origin, %+v back", ab, ba)
		})
	}
}

// measureScene runs inside the namespace of the visitors.
func measureScene(t *testing.T) {
	near, far := netlab.End{Addr: netlab.AddrA}, netlab.End{Addr: netlab.AddrB, Namespace: *far}
	s := site{near: near.Addr, far: far.Addr, wrap: far.Exec()}
	o := startOrigin(t, s)
	targets := []*target{{name: report.Direct, tcp: o.tcp}}
	for _, policy := range policies {
		if wanted(t, "adit "+policy) {
			targets = append(targets, adit(t, s, o, policy)...)
		}
	}
	for _, name := range []string{report.FRP, "frp quic"} {
		if wanted(t, name) {
			targets = append(targets, frp(t, s, o, name)...)
		}
	}
	if wanted(t, "chisel") {
		targets = append(targets, chisel(t, s, o))
	}
	measure(t, *scene, targets, pathWorks(), *pathRounds)
}

func pathWorks() []work {
	d := *pathLength
	return []work{
		overTCP(report.Bulk1, func(ctx context.Context, g load.Dial) load.Result { return load.Bulk(ctx, g, 1, d, false) }),
		overTCP(report.Bulk16, func(ctx context.Context, g load.Dial) load.Result { return load.Bulk(ctx, g, 16, d, false) }),
		overTCP(report.Echo16, func(ctx context.Context, g load.Dial) load.Result { return load.Echo(ctx, g, 16, 128, d, false) }),
		overTCP(report.NewConn16, func(ctx context.Context, g load.Dial) load.Result { return load.Echo(ctx, g, 16, 128, d, true) }),
		overTCP(report.EchoBeside, func(ctx context.Context, g load.Dial) load.Result { return echoBeside(ctx, g, d) }),
	}
}

// echoBeside measures echoes while another visitor downloads.
func echoBeside(ctx context.Context, g load.Dial, d time.Duration) load.Result {
	done := make(chan struct{})
	go func() {
		defer close(done)
		load.Bulk(ctx, g, 1, d+time.Second, false)
	}()
	time.Sleep(500 * time.Millisecond) // the download gets up to speed
	r := load.Echo(ctx, g, 16, 128, d, false)
	<-done
	return r
}
