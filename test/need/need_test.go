package need

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProgramFindsTools(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ADIT_TOOLS", dir)
	want := filepath.Join(dir, "adit-tool-of-this-test")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := Program(t, "adit-tool-of-this-test")[0]; got != want {
		t.Fatalf("found %q, want %q", got, want)
	}
}

func TestRootHoldsTheModule(t *testing.T) {
	if _, err := os.Stat(filepath.Join(Root(), "go.mod")); err != nil {
		t.Fatal(err)
	}
}

func TestEveryFeatureHasAProbe(t *testing.T) {
	for _, f := range []Feature{IPv6, NetNamespaces, Mounts, Netfilter, BBR, Netem, UDPGSO, RTOMin, TUN} {
		if probes[f] == nil {
			t.Errorf("no probe for %s", f)
			continue
		}
		t.Logf("%s: %v", f, probes[f]())
	}
}
