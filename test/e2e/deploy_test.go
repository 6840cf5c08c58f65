package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

func readTree(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(need.Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSystemdUnits has systemd read the units, and our own program the settings they give.
func TestSystemdUnits(t *testing.T) {
	analyze := need.Program(t, "systemd-analyze")[0]
	for _, role := range []string{"server", "agent"} {
		t.Run(role, func(t *testing.T) {
			name := "adit-" + role + ".service"
			unit := readTree(t, "deploy/systemd/"+name)
			// The check wants the program of ExecStart to exist.
			const installed = "/usr/local/bin/adit"
			if !strings.Contains(unit, "ExecStart="+installed+" "+role+" ") {
				t.Fatalf("no ExecStart of %s %s", installed, role)
			}
			file := filepath.Join(t.TempDir(), name)
			writeFile(t, file, strings.ReplaceAll(unit, installed, stack.Binary(t)))
			if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("systemd-analyze verify: %v\n%s", err, out)
			}
			line := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(unit)[1]
			knownFlags(t, role, strings.Fields(line)[1:])
		})
	}
}

// knownFlags checks flags against the program's own help.
func knownFlags(t *testing.T, command string, args []string) {
	t.Helper()
	help := stack.Run(t, nil, command, "--help").Stdout
	for _, arg := range args {
		if strings.HasPrefix(arg, "--") && !regexp.MustCompile(`(?m)^\s+(-\w, )?`+arg+`\b`).MatchString(help) {
			t.Errorf("adit %s has no flag %s", command, arg)
		}
	}
}

// TestDockerfile runs the build commands of the image and looks at what they build.
func TestDockerfile(t *testing.T) {
	text := strings.ReplaceAll(readTree(t, "deploy/Dockerfile"), "\\\n", " ")
	build, final, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not made from scratch")
	}
	if !strings.Contains(final, "\nUSER 65532:65532\n") {
		t.Error("the image runs as root")
	}
	bash := need.Program(t, "bash")[0]
	out := t.TempDir()
	env := append(os.Environ(), "VERSION=docker-test")
	for line := range strings.Lines(build) {
		command, ok := strings.CutPrefix(line, "RUN ")
		if !ok {
			continue
		}
		command = regexp.MustCompile(`--mount=\S+\s+`).ReplaceAllString(command, "")
		command = strings.ReplaceAll(command, "/out/", out+"/")
		cmd := exec.Command(bash, "-ec", command)
		cmd.Dir, cmd.Env = need.Root(), env
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, b)
		}
	}
	for line := range strings.Lines(final) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "COPY" || !strings.HasPrefix(f[len(f)-2], "/out/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(out, strings.TrimPrefix(f[len(f)-2], "/out/"))); err != nil {
			t.Errorf("the image copies what the build does not make: %v", err)
		}
	}
	binary := filepath.Join(out, "adit")
	if got := run(t, nil, binary, "version"); !strings.Contains(got, "docker-test") {
		t.Errorf("adit version: %s", got)
	}
	if f, err := elf.Open(binary); err == nil {
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("the binary is not static; an image from scratch cannot run it")
			}
		}
	}
}

// TestCompose reads the compose file as compose does.
func TestCompose(t *testing.T) {
	dir := filepath.Join(need.Root(), "deploy")
	opts, err := cli.NewProjectOptions([]string{filepath.Join(dir, "compose.yaml")}, cli.WithWorkingDirectory(dir),
		cli.WithProfiles([]string{"server", "agent"}), cli.WithEnv([]string{"ADIT_DOMAIN=example.com"}), cli.WithName("adit"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := opts.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := project.GetService("server")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := project.GetService("agent")
	if err != nil {
		t.Fatal(err)
	}
	var ports []string
	for _, p := range server.Ports {
		ports = append(ports, p.Published+"/"+p.Protocol)
	}
	for _, want := range []string{"443/tcp", "443/udp", "80/tcp"} {
		if !slices.Contains(ports, want) {
			t.Errorf("the server publishes %v, and not %s", ports, want)
		}
	}
	if d := server.Environment["ADIT_DOMAIN"]; d == nil || *d != "example.com" {
		t.Error("ADIT_DOMAIN does not reach the server")
	}
	knownFlags(t, agent.Command[0], agent.Command[1:])
	knownFlags(t, server.Command[0], server.Command[1:])
	for name, s := range map[string]map[string]*string{"server": server.Environment, "agent": agent.Environment} {
		for key, value := range s {
			if value != nil && strings.Contains(strings.ToLower(key), "token") && !strings.HasSuffix(key, "_FILE") {
				t.Errorf("%s: %s holds a secret", name, key)
			}
		}
	}
}

// TestImageIsReproducible builds an image twice, at different times and under different names of files:
// the digest is the same, and the archive byte for byte.
func TestImageIsReproducible(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "image")
	build := exec.Command("go", "build", "-trimpath", "-o", tool, ".")
	build.Dir = filepath.Join(need.Root(), "deploy", "image")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var digests, archives []string
	for _, name := range []string{"one", "two"} {
		program := filepath.Join(dir, name)
		writeFile(t, program, "a program")
		if err := os.Chmod(program, 0o755); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-time.Duration(len(digests)) * time.Hour)
		if err := os.Chtimes(program, when, when); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(dir, name+".tar")
		out, err := exec.Command(tool, "-o", archive, "-name", "example.test/adit:v1", "-roots", "-entrypoint", "/adit", "-volume", "/var/lib/adit",
			"-platform", "linux/amd64", "-file", program+"=/adit", "-platform", "linux/arm64", "-file", program+"=/adit").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		digests, archives = append(digests, string(out)), append(archives, fileSum(t, archive))
	}
	if digests[0] != digests[1] || archives[0] != archives[1] || !strings.HasPrefix(digests[0], "sha256:") {
		t.Errorf("digests %q, archives %q", digests, archives)
	}
}
