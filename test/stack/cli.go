package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// Result is what a command printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs the adit binary to its end. No command of the CLI takes longer than a minute.
func Run(t testing.TB, env []string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t), args...)
	cmd.Env = append(environ(t), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("adit %q did not end within a minute:\n%s%s", args, out.String(), errOut.String())
	}
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return Result{Stdout: out.String(), Stderr: errOut.String(), Code: cmd.ProcessState.ExitCode()}
}

// JSON decodes standard output.
func (r Result) JSON(t testing.TB, into any) {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := json.Unmarshal([]byte(r.Stdout), into); err != nil {
		t.Fatalf("%v in %q", err, r.Stdout)
	}
}

// Problem decodes the error that a command with -o json printed.
func (r Result) Problem(t testing.TB) (message, code, hint string) {
	t.Helper()
	var e struct{ Error, Code, Hint string }
	if r.Code == 0 {
		t.Fatalf("the command succeeded: %s", r.Stdout)
	}
	if err := json.Unmarshal([]byte(r.Stderr), &e); err != nil {
		t.Fatalf("%v in %q", err, r.Stderr)
	}
	return e.Error, e.Code, e.Hint
}
