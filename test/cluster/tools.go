package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/charts"
)

// Tools are what a test does with a cluster; what goes wrong fails the test.
type Tools struct {
	t testing.TB
	c *controlPlane
}

// Kubectl runs kubectl as a user who may do everything, and returns what it prints.
func (k Tools) Kubectl(args ...string) string {
	k.t.Helper()
	out, err := k.c.kubectl(nil, args...)
	if err != nil {
		k.t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Try is Kubectl for what may fail.
func (k Tools) Try(args ...string) (string, error) { return k.c.kubectl(nil, args...) }

// TryAs is Try as the user of another kubeconfig.
func (k Tools) TryAs(kubeconfig string, args ...string) (string, error) {
	return k.c.command(nil, append([]string{filepath.Join(Bin(), "kubectl"), "--kubeconfig", kubeconfig}, args...)...)
}

// Apply applies manifests strictly.
func (k Tools) Apply(yaml string) {
	k.t.Helper()
	if _, err := k.c.kubectl([]byte(yaml), "apply", "--validate=strict", "-f", "-"); err != nil {
		k.t.Fatalf("apply: %v\n%s", err, yaml)
	}
}

// Eventually asks until f has no error.
func (k Tools) Eventually(limit time.Duration, f func() error) {
	k.t.Helper()
	var err error
	if !until(limit, func() bool { err = f(); return err == nil }) {
		k.t.Fatalf("not within %s: %v", limit, err)
	}
}

// ConfigOf is the file of a kubeconfig with a token of a service account.
func (k Tools) ConfigOf(namespace, account string) string {
	k.t.Helper()
	token := strings.TrimSpace(k.Kubectl("-n", namespace, "create", "token", account))
	config, err := os.ReadFile(k.c.Kubeconfig)
	if err != nil {
		k.t.Fatal(err)
	}
	i, j := bytes.Index(config, []byte("users:")), bytes.Index(config, []byte("contexts:"))
	text := fmt.Sprintf("%susers: [{name: user, user: {token: %q}}]\n%s", config[:i], token, config[j:])
	path := filepath.Join(k.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return path
}

// Helm runs helm as a user who may do everything.
func (k Tools) Helm(args ...string) string {
	k.t.Helper()
	out, err := k.TryHelm(args...)
	if err != nil {
		k.t.Fatalf("helm %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// TryHelm is Helm for what may fail.
func (k Tools) TryHelm(args ...string) (string, error) {
	program, err := charts.Tool("helm")
	if err != nil {
		return "", err
	}
	return k.c.command(nil, append([]string{program, "--kubeconfig", k.c.Kubeconfig}, args...)...)
}

// Request is one that the API server has answered.
type Request struct {
	User, Verb, Group, Resource, Namespace, Name, Path string
	Code                                               int
}

// Requests are those of a user, in their order, e.g. "system:serviceaccount:adit:agent".
func (k Tools) Requests(user string) []Request {
	k.t.Helper()
	f, err := os.Open(k.c.AuditLog())
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Stage, Verb, RequestURI string
			User                    struct{ Username string }
			ObjectRef               struct{ APIGroup, Resource, Namespace, Name string }
			ResponseStatus          struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the last line may be half written
		}
		// A watch is told of when it starts and when it ends.
		if e.User.Username == user && (e.Stage == "ResponseComplete" && e.Verb != "watch" || e.Stage == "ResponseStarted") {
			out = append(out, Request{user, e.Verb, e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Namespace, e.ObjectRef.Name, e.RequestURI, e.ResponseStatus.Code})
		}
	}
	return out
}

// output runs a program; its error has what it said.
func output(cmd *exec.Cmd, stdin []byte) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(strings.TrimSpace(errs.String())))
	}
	return out.String(), nil
}
