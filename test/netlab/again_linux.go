package netlab

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

// inside tells a process which of its tests is the one that runs again.
const inside = "ADIT_TEST_INSIDE"

// Inside runs the calling test again in a network namespace of its own, with a loopback that is up: in
// there it reports true, and false where it was called first, when the test has ended in there.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	need.RootUser(t, "network namespaces")
	need.Kernel(t, need.NetNamespaces)
	need.Program(t, "ip", "nsenter")
	sweep(t)
	name := fmt.Sprintf("adit-%d-%da", os.Getpid(), made.Add(1))
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "delete", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	return Again(t, name)
}

var ended = regexp.MustCompile(`(?m)^ {4}--- (PASS|FAIL|SKIP): [^/ ]+/([^/ ]+) \(`)

// Again runs the calling test again in a namespace, as Inside does; its subtests there are told here too.
// What env adds is for that run. Only the network is another one: `ip netns exec` would hide control groups.
func Again(t *testing.T, namespace string, env ...string) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), need.Find("nsenter"), "--net=/run/netns/"+namespace, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=30m")
	cmd.Env = append(append(os.Environ(), inside+"="+t.Name()), env...)
	out, err := cmd.CombinedOutput()
	for _, m := range ended.FindAllStringSubmatch(string(out), -1) {
		t.Run(m[2], func(t *testing.T) {
			switch m[1] {
			case "FAIL":
				t.Error("it failed in the namespace")
			case "SKIP":
				need.Skip(t, "it was skipped in the namespace")
			}
		})
	}
	if err != nil {
		t.Errorf("in the namespace %s: %v\n%s", namespace, err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}
