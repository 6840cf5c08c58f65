package e2e

import (
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/stack"
)

// TestCompletion: a shell completes the names that the hub has; without a hub it is told none, quietly.
func TestCompletion(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	s.Invite("workshop", "--hostname", "a.localhost")
	for _, args := range [][]string{
		{"agents", "create", "home"}, {"agents", "create", "hut"}, {"tunnel", "create", "app", "http://127.0.0.1:3000", "--agent", "home", "--access", "public"},
		{"policy", "set", "team", "--email", "a@example.com"},
	} {
		if r := s.CLI(args...); r.Code != 0 {
			t.Fatal(args, r.Stderr)
		}
	}
	ask := func(args ...string) (names []string) {
		t.Helper()
		r := stack.Run(t, []string{"ADIT_DATA_DIR=" + s.Dir}, append([]string{"__complete"}, args...)...)
		if r.Code != 0 {
			t.Errorf("%v: %d %s", args, r.Code, r.Stderr)
		}
		for line := range strings.Lines(r.Stdout) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
				names = append(names, line)
			}
		}
		return names
	}
	for _, c := range []struct{ ask, want string }{
		{"tunnel get |", "app"}, {"tunnel delete a|", "app"}, {"access list |", "app"}, {"agents get h|", "home hut"}, {"logs ho|", "home"}, {"agents services h|", "home hut"},
		{"forward hu|", "hut"}, {"invite revoke |", "workshop"}, {"policy get t|", "team"}, {"tunnel get app |", ""}, {"preflight http://127.0.0.1:1 --agent ho|", "home"},
	} {
		words := strings.Split(strings.TrimSuffix(c.ask, "|"), " ")
		if got := strings.Join(ask(words...), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.ask, got, c.want)
		}
	}
	if r := stack.Run(t, []string{"ADIT_DATA_DIR=" + t.TempDir()}, "__complete", "tunnel", "get", ""); r.Code != 0 || strings.Contains(r.Stdout, "app") {
		t.Errorf("without a hub: %+v", r)
	}
}
