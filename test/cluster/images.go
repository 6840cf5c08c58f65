package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/adit-dev/adit/test/need"
)

// imageName is what Pods call an image of the tests.
func imageName(name string) string { return "docker.io/test/" + name + ":test" }

// Image is one that a test makes for its Pods.
type Image struct {
	// Name alone; Pods say docker.io/test/NAME:test.
	Name string
	// Files by their paths in the image. Programs bring the libraries they are linked with.
	Files map[string]string
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// User runs it; empty = 65532:65532.
	User string
}

// Build makes the image and returns its archive.
func (i Image) Build() (archive string, err error) {
	archive = filepath.Join(Bin(), i.Name+".tar")
	args := []string{"-o", archive, "-name", imageName(i.Name)}
	if i.User != "" {
		args = append(args, "-user", i.User)
	}
	for _, e := range i.Entrypoint {
		args = append(args, "-entrypoint", e)
	}
	for _, target := range sortedKeys(i.Files) {
		source := i.Files[target]
		args = append(args, "-file", source+"="+target)
		for _, lib := range libraries(source) {
			args = append(args, "-file", lib+"="+lib)
		}
	}
	if out, err := exec.Command(filepath.Join(Bin(), "image"), args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("image %s: %w: %s", i.Name, err, out)
	}
	return archive, nil
}

var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// libraries are what a program is linked with, its loader among them; none if it is static.
func libraries(program string) []string {
	if info, err := os.Stat(program); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return nil
	}
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil
	}
	var libs []string
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		libs = append(libs, m[1])
	}
	return libs
}

// buildImages makes the images that every cluster has.
func buildImages() error {
	for _, name := range []string{"pause", "coredns"} {
		i := Image{Name: name, Files: map[string]string{"/" + name: filepath.Join(Bin(), name)}, Entrypoint: []string{"/" + name}}
		if _, err := i.Build(); err != nil {
			return err
		}
	}
	return nil
}

// Program builds a program of this module for Pods and returns its path.
func Program(pkg string) (string, error) {
	out := filepath.Join(Bin(), filepath.Base(pkg))
	return out, build(strings.TrimPrefix(pkg, need.Root()+"/"), out, "-s -w")
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
