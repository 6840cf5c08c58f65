package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

// TestImage builds the image as `make image` does and looks into it.
func TestImage(t *testing.T) {
	archive, digest := buildImage(t)
	blobs := untar(t, archive)
	var top, index struct{ Manifests []descriptor }
	decode(t, blobs["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest {
		t.Fatalf("the archive holds %+v, printed was %s", top.Manifests, digest)
	}
	decode(t, blob(t, blobs, digest), &index)
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if len(index.Manifests) != len(machines) {
		t.Fatalf("%d platforms, not %d", len(index.Manifests), len(machines))
	}
	for _, d := range index.Manifests {
		t.Run(d.Platform.Architecture, func(t *testing.T) { checkImage(t, blobs, d, machines[d.Platform.Architecture]) })
	}
}

type descriptor struct {
	Digest   string
	Platform struct{ Architecture, OS string }
}

// checkImage looks at the image of one platform; the Dockerfile is what it must agree with.
func checkImage(t *testing.T, blobs map[string][]byte, d descriptor, machine elf.Machine) {
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, blob(t, blobs, d.Digest), &manifest)
	var config struct {
		Architecture, OS string
		Config           struct {
			User            string
			Entrypoint, Env []string
			Volumes         map[string]struct{}
		}
	}
	decode(t, blob(t, blobs, manifest.Config.Digest), &config)
	if config.OS != "linux" || config.Architecture != d.Platform.Architecture {
		t.Errorf("the configuration is for %s/%s", config.OS, config.Architecture)
	}
	said := func(instruction string) string {
		m := regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllStringSubmatch(readTree(t, "deploy/Dockerfile"), -1)
		if len(m) != 1 {
			t.Fatalf("the Dockerfile has %d lines of %s", len(m), instruction)
		}
		return m[0][1]
	}
	entrypoint, _ := json.Marshal(config.Config.Entrypoint)
	if got, want := string(entrypoint), said("ENTRYPOINT"); got != want {
		t.Errorf("entrypoint %s, the Dockerfile says %s", got, want)
	}
	if got, want := config.Config.User, said("USER"); got != want {
		t.Errorf("user %s, the Dockerfile says %s", got, want)
	}
	if want := said("ENV"); !slices.Equal(config.Config.Env, []string{want}) {
		t.Errorf("environment %s, the Dockerfile says %s", config.Config.Env, want)
	}
	if _, ok := config.Config.Volumes[said("VOLUME")]; !ok || len(config.Config.Volumes) != 1 {
		t.Errorf("volumes %v", config.Config.Volumes)
	}
	if len(manifest.Layers) != 1 {
		t.Fatalf("%d layers", len(manifest.Layers))
	}
	checkLayer(t, blob(t, blobs, manifest.Layers[0].Digest), machine)
}

func checkLayer(t *testing.T, layer []byte, machine elf.Machine) {
	unzip, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	heads, files := map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(unzip); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		heads[h.Name] = h
	}
	for name, mode := range map[string]int64{"tmp/": 0o1777, "adit": 0o755, "etc/passwd": 0o644, "etc/ssl/certs/ca-certificates.crt": 0o644, "var/lib/adit/": 0o755} {
		if h := heads[name]; h == nil || h.Mode != mode {
			t.Errorf("/%s: %+v, its mode should be %o", name, h, mode)
		}
	}
	if h := heads["var/lib/adit/"]; h != nil && (h.Uid != 65532 || h.Gid != 65532) {
		t.Errorf("the data folder belongs to %d:%d", h.Uid, h.Gid)
	}
	if n := bytes.Count(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")); n < 50 {
		t.Errorf("%d authorities", n)
	}
	program, err := elf.NewFile(bytes.NewReader(files["adit"]))
	if err != nil {
		t.Fatal(err)
	}
	if program.Machine != machine {
		t.Errorf("the program is for %s", program.Machine)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is not static; an image without libraries cannot run it")
		}
	}
}

// buildImage returns the archive and the digest that is printed.
func buildImage(t *testing.T) (archive []byte, digest string) {
	t.Helper()
	bash := need.Program(t, "bash")[0]
	out := filepath.Join(t.TempDir(), "adit.tar")
	cmd := exec.Command(bash, "deploy/image/build", out)
	cmd.Dir, cmd.Env, cmd.Stderr = need.Root(), append(os.Environ(), "VERSION=image-test"), os.Stderr
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("deploy/image/build: %v", err)
	}
	if archive, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	return archive, strings.TrimSpace(string(printed))
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// blob is a part of the archive that is what its name says.
func blob(t *testing.T, files map[string][]byte, digest string) []byte {
	t.Helper()
	b := files["blobs/"+strings.Replace(digest, ":", "/", 1)]
	if sum := sha256.Sum256(b); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		t.Fatalf("%s is not in the archive, or is something else", digest)
	}
	return b
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}
