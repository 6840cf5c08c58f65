// Package provider runs a real OpenID Connect provider for tests: the program of the module test/oidc.
package provider

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

// Password is that of every user.
const Password = "verysecure"

// User is somebody whom the provider knows.
func User(id, name, email string, verified bool) map[string]any {
	return map[string]any{"ID": id, "Username": name, "Password": Password, "Email": email, "EmailVerified": verified, "PreferredLanguage": "en"}
}

// Start runs a provider with the client "adit", whose secret is "hub-secret", until the test ends. It sends
// people back to redirect, and returns its issuer.
func Start(t testing.TB, redirect string, users ...map[string]any) string {
	t.Helper()
	out := filepath.Join(need.Root(), "bin", "oidc")
	build := exec.Command("go", "build", "-o", out, ".")
	build.Dir = filepath.Join(need.Root(), "test", "oidc")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	byID := map[string]any{}
	for _, u := range users {
		byID[u["ID"].(string)] = u
	}
	raw, err := json.Marshal(byID)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(out, "adit", "hub-secret", redirect, file)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatal("the provider did not start")
	}
	return lines.Text()
}
