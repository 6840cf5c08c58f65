package limits

import (
	"net/netip"
	"testing"
)

func TestCounterRefusesAboveItsCapPerKey(t *testing.T) {
	c := NewCounter[string](2)
	for range 2 {
		if !c.Acquire("a") {
			t.Fatal("refused below the cap")
		}
	}
	if c.Acquire("a") {
		t.Fatal("admitted above the cap")
	}
	if !c.Acquire("b") {
		t.Fatal("another key was refused")
	}
	c.Release("a")
	if !c.Acquire("a") {
		t.Fatal("refused after a release")
	}
	c.Release("a")
	c.Release("a")
	c.Release("b")
	if len(c.n) != 0 {
		t.Fatalf("%d keys are kept without holders", len(c.n))
	}
}

func TestSourceTakesIPv6BySixtyFour(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7":          "192.0.2.7",
		"::ffff:192.0.2.7":   "192.0.2.7",
		"2001:db8:1:2:3::4":  "2001:db8:1:2::",
		"2001:db8:1:2:ff::1": "2001:db8:1:2::",
		"fe80::1%eth0":       "fe80::",
	} {
		if got := Source(netip.MustParseAddr(in)).String(); got != want {
			t.Errorf("Source(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestConnsCapsTotal(t *testing.T) {
	c := NewConns(1, 1)
	if !c.AcquireTotal() || c.AcquireTotal() {
		t.Fatal("the total cap of 1 does not hold")
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	if !c.AcquireAddress(a) || c.AcquireAddress(b) {
		t.Fatal("two addresses of one /64 count as two visitors")
	}
	c.ReleaseAddress(a)
	c.ReleaseTotal()
	if c.Total() != 0 || !c.AcquireAddress(b) {
		t.Fatal("released places are not free")
	}
}
