package stack

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
)

// Trace follows the calls by which processes move bytes. What it returns ends that, and gives the
// bytes that each call moved by its name.
func Trace(t testing.TB, ps ...*Process) (stop func() map[string]int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "calls")
	args := []string{"-f", "-o", file, "-e", "trace=read,write,readv,writev,recvfrom,sendto,recvmsg,sendmsg,splice"}
	for _, p := range ps {
		args = append(args, "-p", strconv.Itoa(p.PID()))
	}
	trace := Start(t, Command{Name: "strace", Path: need.Program(t, "strace")[0], Args: args})
	for _, p := range ps {
		trace.WaitLog(10*time.Second, "Process "+strconv.Itoa(p.PID())+" attached")
	}
	return func() map[string]int {
		t.Helper()
		trace.Terminate()
		trace.Wait(10 * time.Second)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		moved := map[string]int{}
		for _, m := range callLine.FindAllStringSubmatch(strings.ReplaceAll(string(b), "\r", ""), -1) {
			n, _ := strconv.Atoi(m[2])
			moved[m[1]] += n
		}
		return moved
	}
}

var callLine = regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)[ (].* = (\d+)$`)
