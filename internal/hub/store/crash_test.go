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
)

// crashEnv makes the test binary a writer that never stops: its value is the database.
const crashEnv = "ADIT_TEST_STORE_WRITER"

func TestCrashWriter(t *testing.T) {
	path := os.Getenv(crashEnv)
	if path == "" {
		return // this is the other process of TestKilledInTheMiddleOfWrites
	}
	s, err := Open(context.Background(), Options{URL: "sqlite:" + path})
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
	path := filepath.Join(t.TempDir(), "x.db")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		_ = os.Remove(path)
		_ = os.Remove(path + "-wal")
		_ = os.Remove(path + "-shm")
		cmd := exec.Command(exe, "-test.run=^TestCrashWriter$", "-test.v")
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
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

		s := openTest(t, path, 1)
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
