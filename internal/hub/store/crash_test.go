package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/postgres"
)

// crashEnv makes the test binary a writer that never stops: its value is the database.
const crashEnv = "ADIT_TEST_STORE_WRITER"

func TestCrashWriter(t *testing.T) {
	url := os.Getenv(crashEnv)
	if url == "" {
		return // this is the other process of TestKilledInTheMiddleOfWrites
	}
	s, err := Open(context.Background(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		err := s.Write(context.Background(), func(tx *Tx) error {
			id := fmt.Sprintf("t%06d", i)
			tx.Changed("tunnel/" + id)
			first := 1 + i%300*200
			if old := fmt.Sprintf("t%06d", i-300); i >= 300 {
				tx.Gone("tunnel/" + old)
				if err := tx.DeleteTunnel(old); err != nil {
					return err
				}
			}
			return tx.AddTunnel(tunnel(id, id+".example"), UDP, first, first+199)
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("stored", i)
	}
}

func TestKilledInTheMiddleOfWrites(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		killRounds(t, func() string { return "sqlite:" + filepath.Join(t.TempDir(), "x.db") })
	})
	t.Run("PostgreSQL", func(t *testing.T) { killRounds(t, func() string { return postgres.URL(t) }) })
}

// killRounds kills writers, each on a database of its own, and looks at what they left.
func killRounds(t *testing.T, fresh func() string) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		url := fresh()
		cmd := exec.Command(exe, "-test.run=^TestCrashWriter$", "-test.v")
		cmd.Env = append(os.Environ(), crashEnv+"="+url)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stored := 0
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if _, n, ok := strings.Cut(sc.Text(), "stored "); ok {
				_, _ = fmt.Sscan(n, &stored)
				if stored >= 20+17*round {
					break
				}
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()

		s := openTest(t, url, 1)
		err = s.Read(t.Context(), func(tx *Tx) error {
			tunnels, err := tx.Tunnels()
			if err != nil {
				return err
			}
			if len(tunnels) <= stored {
				t.Errorf("%d tunnels, although %d were confirmed", len(tunnels), stored+1)
			}
			last, floor, err := tx.Revision()
			if err != nil {
				return err
			}
			if int(last-floor) != len(tunnels) {
				t.Errorf("%d changes for %d tunnels", last-floor, len(tunnels))
			}
			var ports int
			if err := tx.tx.NewRaw("SELECT count(*) FROM ports").Scan(tx.ctx, &ports); err != nil {
				return err
			}
			if ports != 200*len(tunnels) {
				t.Errorf("%d ports for %d tunnels: half a write was stored", ports, len(tunnels))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
}
