// Package netem emulates a network path between two network namespaces: delay, loss,
// reordering, rate, queue and MTU, over a TUN device in each. It needs root and /dev/net/tun
// but no kernel module, for kernels without an emulator of their own.
package netem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Path says what happens to packets in one direction.
type Path struct {
	// Delay is one way.
	Delay time.Duration
	// Loss is the share of packets dropped at random, 0 to 1.
	Loss float64
	// Reorder is the share of packets that skip the delay.
	Reorder float64
	// Rate is in bits per second; 0 = unlimited.
	Rate float64
	// Queue is how long a packet may wait for its turn at Rate before it is dropped (tail drop).
	Queue time.Duration
}

// Device is one end: a TUN device that Open makes in a namespace.
type Device struct {
	// Namespace is a name under /var/run/netns.
	Namespace string
	// Name of the device, e.g. "tun0".
	Name string
}

// Stats counts the packets of one direction.
type Stats struct{ Forwarded, Lost, QueueDrops int64 }

// Link joins two devices.
type Link struct {
	fds   [2]int
	stats [2]struct{ forwarded, lost, queue atomic.Int64 }
	path  [2]atomic.Pointer[Path]
	wg    sync.WaitGroup
}

// Open makes both devices; Run must follow, since it is what removes them. Addresses, routes,
// MTU and "up" are the caller's.
func Open(a, b Device) (*Link, error) {
	l := &Link{}
	fa, err := openTUN(a)
	if err != nil {
		return nil, err
	}
	fb, err := openTUN(b)
	if err != nil {
		_ = unix.Close(fa)
		return nil, err
	}
	l.fds = [2]int{fa, fb}
	l.Set(Path{}, Path{})
	return l, nil
}

// Set changes what happens to packets from a to b and from b to a, also while running.
func (l *Link) Set(ab, ba Path) {
	l.path[0].Store(&ab)
	l.path[1].Store(&ba)
}

// Stats returns the counters of a to b and b to a.
func (l *Link) Stats() (ab, ba Stats) {
	of := func(i int) Stats {
		s := &l.stats[i]
		return Stats{s.forwarded.Load(), s.lost.Load(), s.queue.Load()}
	}
	return of(0), of(1)
}

// Run forwards packets until ctx ends, then removes the devices.
func (l *Link) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, 2)
	for i := range 2 {
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			errs <- l.pump(ctx, i)
		}()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-errs:
	}
	cancel()
	l.wg.Wait()
	for _, fd := range l.fds {
		_ = unix.Close(fd)
	}
	return err
}

type packet struct {
	due  time.Time
	data []byte
}

// pump moves the packets of direction i: reads at once, hands over for delivery when due.
func (l *Link) pump(ctx context.Context, i int) error {
	waiting := make(chan packet, 1<<16)
	defer close(waiting)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		l.deliver(ctx, i, waiting)
	}()
	// Seeded, so that every run loses alike.
	random := rand.New(rand.NewPCG(42, uint64(i)))
	free := time.Now() // when the emulated wire is free again
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, err := read(l.fds[i], buf)
		if err != nil {
			return fmt.Errorf("read TUN device: %w", err)
		}
		if n == 0 {
			continue
		}
		p := l.path[i].Load()
		if random.Float64() < p.Loss {
			l.stats[i].lost.Add(1)
			continue
		}
		if now := time.Now(); free.Before(now) {
			free = now
		}
		if p.Rate > 0 {
			if time.Until(free) > p.Queue {
				l.stats[i].queue.Add(1)
				continue
			}
			free = free.Add(time.Duration(float64(n*8) / p.Rate * float64(time.Second)))
		}
		data := append([]byte(nil), buf[:n]...)
		if random.Float64() < p.Reorder {
			l.write(i, data) // overtakes everything that still waits for its delay
			continue
		}
		select {
		case waiting <- packet{free.Add(p.Delay), data}:
		default:
			l.stats[i].queue.Add(1)
		}
	}
	return nil
}

// deliver writes each packet when it is due; a change of the delay never reorders.
func (l *Link) deliver(ctx context.Context, i int, waiting <-chan packet) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := range waiting {
		if d := time.Until(p.due); d > 0 {
			timer.Reset(d)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		l.write(i, p.data)
	}
}

// write drops what the other side cannot take, as a wire does.
func (l *Link) write(i int, data []byte) {
	_, _ = unix.Write(l.fds[1-i], data)
	l.stats[i].forwarded.Add(1)
}

// read waits a moment for a packet, so that the end of the context is noticed; n is 0 when
// there was none.
func read(fd int, buf []byte) (n int, err error) {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err = unix.Poll(ready, 100)
	if n == 0 || errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err = unix.Read(fd, buf)
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return n, err
}

// openTUN enters the namespace on a thread of its own, which is not used again.
func openTUN(d Device) (int, error) {
	type result struct {
		fd  int
		err error
	}
	c := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := tunIn(d)
		c <- result{fd, err}
	}()
	r := <-c
	return r.fd, r.err
}

func tunIn(d Device) (int, error) {
	f, err := os.Open("/var/run/netns/" + d.Namespace)
	if err != nil {
		return -1, fmt.Errorf("network namespace %q: %w", d.Namespace, err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("enter network namespace %q: %w", d.Namespace, err)
	}
	req, err := unix.NewIfreq(d.Name)
	if err != nil {
		return -1, fmt.Errorf("device name %q: %w", d.Name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make TUN device %q in %q: %w", d.Name, d.Namespace, err)
	}
	return fd, nil
}
