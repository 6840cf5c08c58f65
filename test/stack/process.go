package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is one running program of a test.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// Command is how to start a process.
type Command struct {
	// Name appears in failures.
	Name string
	// Path of the program; empty = the adit binary.
	Path string
	Args []string
	// Env adds to an environment that holds only PATH, HOME and TMPDIR.
	Env []string
	Dir string
	// Wrap, if set, is a command line that runs the program, e.g. in a network namespace.
	Wrap []string
	// Attr, if set, are system attributes, e.g. a namespace.
	Attr *syscall.SysProcAttr
	// Grace is how long SIGTERM may take at the end of the test; 0 = 10 s.
	Grace time.Duration
}

// Start starts a process and ends it when the test ends.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	if c.Path == "" {
		c.Path = Binary(t)
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	// ADIT_TEST_LOGS names a folder that keeps whole logs; a failure shows only their ends.
	dir := os.Getenv("ADIT_TEST_LOGS")
	if dir == "" {
		dir = t.TempDir()
	}
	log, err := os.CreateTemp(dir, strings.ReplaceAll(c.Name, " ", "")+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	line := append(append(slices.Clone(c.Wrap), c.Path), c.Args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(environ(t), c.Env...)
	cmd.Dir, cmd.SysProcAttr = c.Dir, c.Attr
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		log.Close()
		t.Fatalf("start %s: %v", c.Name, err)
	}
	p := &Process{t: t, name: c.Name, cmd: cmd, log: log.Name(), done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		log.Close()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.end(c.Grace)
		if t.Failed() {
			t.Logf("---- log of %s (pid %d) ----\n%s", c.Name, p.PID(), tail(p.Log(), 60))
		}
	})
	return p
}

// environ is a clean environment: a setting of the caller's shell never decides a test.
func environ(t testing.TB) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + os.TempDir(), "GOTRACEBACK=all"}
}

// end asks the process to stop, and kills it after grace.
func (p *Process) end(grace time.Duration) {
	if !p.Alive() {
		return
	}
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		// Leave the stacks in the log: a process that does not stop is a finding.
		p.signal(syscall.SIGQUIT)
		select {
		case <-p.done:
		case <-time.After(2 * time.Second):
			p.signal(syscall.SIGKILL)
			<-p.done
		}
		p.t.Errorf("%s did not stop within %s of SIGTERM", p.name, grace)
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *Process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %s to %s: %v", s, p.name, err)
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Pause stops the process with SIGSTOP: it lives, holds its sockets and says nothing.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// Terminate sends SIGTERM without waiting.
func (p *Process) Terminate() { p.signal(syscall.SIGTERM) }

// Hangup sends SIGHUP.
func (p *Process) Hangup() { p.signal(syscall.SIGHUP) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns its exit code.
func (p *Process) Wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %s", p.name, limit)
		return -1
	}
}

// Log is everything the process has printed.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// WaitLog waits until the log holds every part.
func (p *Process) WaitLog(limit time.Duration, parts ...string) {
	p.t.Helper()
	Eventually(p.t, limit, func() error {
		text := p.Log()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				if !p.Alive() {
					return fmt.Errorf("%s ended without saying %q:\n%s", p.name, part, tail(text, 20))
				}
				return fmt.Errorf("the log of %s says no %q", p.name, part)
			}
		}
		return nil
	})
}

// RSS is the resident memory of the process in bytes.
func (p *Process) RSS() int64 {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.PID()), "statm"))
	if err != nil {
		p.t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		p.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// Descriptors counts the open descriptors of the process.
func (p *Process) Descriptors() int {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(p.PID()), "fd"))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > lines {
		all = append([]string{fmt.Sprintf("… %d lines before", len(all)-lines)}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}
