package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processes are programs that run until they are ended. Their ids are in files, so that whoever comes
// after a run that was killed can end what it has left.
type processes struct {
	dir string
	// wrap is a command line that runs each of them, e.g. in namespaces.
	wrap []string
}

// start runs a program with its output in a file.
func (p *processes) start(name string, args ...string) error {
	for _, d := range []string{"log", "pid"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(p.log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	line := append(append([]string{}, p.wrap...), args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// A signal for the terminal's programs is not meant for these.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }()
	id, err := identity(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once: %s", name, tail(p.log(name)))
	}
	return os.WriteFile(p.pidFile(name), []byte(id), 0o644)
}

func (p *processes) log(name string) string     { return filepath.Join(p.dir, "log", name+".log") }
func (p *processes) pidFile(name string) string { return filepath.Join(p.dir, "pid", name) }

// pid is the id of a program that runs; 0 = it does not.
func (p *processes) pid(name string) int {
	b, err := os.ReadFile(p.pidFile(name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.Fields(string(b) + " x")[0])
	if err != nil {
		return 0
	}
	// The same id may be another program's by now; its start tells.
	if id, err := identity(pid); err != nil || id != string(b) {
		return 0
	}
	return pid
}

// stop ends a program, with SIGKILL if it takes longer than grace; one that does not run is fine.
func (p *processes) stop(name string, grace time.Duration) {
	pid := p.pid(name)
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	if !until(grace, func() bool { return p.pid(name) == 0 }) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		until(10*time.Second, func() bool { return p.pid(name) == 0 })
	}
	_ = os.Remove(p.pidFile(name))
}

// identity is the id of a process with the time it started; an error = there is none that runs.
func identity(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name in parentheses may hold anything; the state is the first field after it.
	_, rest, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
	f := bytes.Fields(rest)
	if !ok || len(f) < 20 || f[0][0] == 'Z' {
		return "", errors.New("it has ended")
	}
	return fmt.Sprintf("%d %s", pid, f[19]), nil
}

// until asks every 50 ms whether something is true, and reports whether it was within the limit.
func until(limit time.Duration, f func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// tail is the end of a file.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}
