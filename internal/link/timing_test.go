package link

import (
	"testing"
	"time"
)

// TestTiming holds the intervals of production to what is promised; tests use shorter ones.
func TestTiming(t *testing.T) {
	d := defaultTiming()
	t.Run("T17 a heartbeat every 15 to 25 s, a dead peer found within 45 s", func(t *testing.T) {
		if d.ping < 15*time.Second || d.ping > 25*time.Second || d.dead > 45*time.Second || d.dead < 2*d.ping {
			t.Errorf("ping %v, dead %v", d.ping, d.dead)
		}
	})
	t.Run("T07 back on QUIC within 5 minutes", func(t *testing.T) {
		if d.upgradeMax+d.dial > 5*time.Minute {
			t.Errorf("a better carrier is looked for every %v, and a dial takes up to %v", d.upgradeMax, d.dial)
		}
	})
	t.Run("T14 full jitter from the first retry on, below a cap", func(t *testing.T) {
		for n, ceiling := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
			var low, high int
			for range 400 {
				b := backoff{min: d.backoffMin, max: d.backoffMax, n: n}
				pause := b.next()
				if pause <= 0 || pause > ceiling {
					t.Fatalf("retry %d after %v, want up to %v", n+1, pause, ceiling)
				}
				if pause < ceiling/4 {
					low++
				}
				if pause > ceiling*3/4 {
					high++
				}
			}
			if low < 50 || high < 50 {
				t.Errorf("retry %d: %d of 400 pauses in the first quarter and %d in the last, want about 100", n+1, low, high)
			}
		}
	})
	t.Run("T02 an agent that reconnects every 3 s is not shut out", func(t *testing.T) {
		if d.openings < 1.0/3 || d.openingBurst < 5 {
			t.Errorf("%v sessions a second, %d at once", d.openings, d.openingBurst)
		}
	})
}
