// Command image builds a container image without a container engine: files, one layer per platform,
// nothing else. The archive it writes is an OCI layout; the same files give the same digest, which it
// prints.
//
//	image -o adit.tar -name ghcr.io/adit-dev/adit:v1 -entrypoint /adit \
//	    -platform linux/amd64 -file bin/amd64/adit=/adit -platform linux/arm64 -file bin/arm64/adit=/adit
package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image is what the flags ask for.
type image struct {
	out, name, user string
	entrypoint, cmd []string
	env, volumes    []string
	labels          map[string]string
	roots           bool
	platforms       []platform
}

// platform is one system with its files.
type platform struct {
	v1.Platform
	files []file
}

type file struct {
	// source is a path here; empty = a folder.
	source, target string
	owner          int
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	i, err := parse(args)
	if err != nil {
		return err
	}
	index, err := i.build()
	if err != nil {
		return err
	}
	if err := write(index, i.name, i.out); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, digest)
	return err
}

func parse(args []string) (*image, error) {
	i := &image{labels: map[string]string{}}
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&i.out, "o", "", "archive to write")
	f.StringVar(&i.name, "name", "", "repository:tag, for whoever imports the archive")
	f.StringVar(&i.user, "user", "65532:65532", "user and group of the process")
	f.BoolVar(&i.roots, "roots", false, "add the roots that Mozilla trusts")
	words := func(name, usage string, to *[]string) {
		f.Func(name, usage, func(s string) error { *to = append(*to, s); return nil })
	}
	words("entrypoint", "program and its first arguments, one each", &i.entrypoint)
	words("cmd", "arguments that a user may replace, one each", &i.cmd)
	words("env", "NAME=VALUE", &i.env)
	words("volume", "folder that is a volume, owned by the user", &i.volumes)
	f.Func("label", "NAME=VALUE", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("write it as NAME=VALUE")
		}
		i.labels[k] = v
		return nil
	})
	f.Func("platform", "OS/ARCH that the files after it are for (linux/amd64)", func(s string) error {
		p, err := v1.ParsePlatform(s)
		if err != nil {
			return err
		}
		i.platforms = append(i.platforms, platform{Platform: *p})
		return nil
	})
	f.Func("file", "SOURCE=TARGET", func(s string) error {
		from, to, ok := strings.Cut(s, "=")
		if !ok || !path.IsAbs(to) {
			return fmt.Errorf("write it as SOURCE=/TARGET")
		}
		if len(i.platforms) == 0 {
			i.platforms = []platform{{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}}}
		}
		p := &i.platforms[len(i.platforms)-1]
		p.files = append(p.files, file{source: from, target: path.Clean(to)})
		return nil
	})
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("what is %q?", f.Args())
	}
	if i.out == "" || len(i.platforms) == 0 {
		return nil, fmt.Errorf("-o and a -file at least are needed")
	}
	return i, nil
}

func (i *image) build() (v1.ImageIndex, error) {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range i.platforms {
		img, err := i.of(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Platform.String(), err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p.Platform}})
	}
	return index, nil
}

func (i *image) of(p platform) (v1.Image, error) {
	b, err := i.layer(p)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant
	c.Config = v1.Config{User: i.user, Entrypoint: i.entrypoint, Cmd: i.cmd, Env: i.env, Labels: i.labels, WorkingDir: "/"}
	if len(i.volumes) > 0 {
		c.Config.Volumes = map[string]struct{}{}
		for _, v := range i.volumes {
			c.Config.Volumes[v] = struct{}{}
		}
	}
	return mutate.ConfigFile(img, c)
}

// layer is everything in the image as a tar stream, in a fixed order and with fixed times.
func (i *image) layer(p platform) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{"/": true}
	var folder func(name string, mode int64, owner int) error
	folder = func(name string, mode int64, owner int) error {
		if made[name] {
			return nil
		}
		if err := folder(path.Dir(name), 0o755, 0); err != nil {
			return err
		}
		made[name] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[1:] + "/", Mode: mode, Uid: owner, Gid: owner, ModTime: time.Unix(0, 0)})
	}
	put := func(name string, mode int64, content []byte) error {
		if err := folder(path.Dir(name), 0o755, 0); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	if err := folder("/tmp", 0o1777, 0); err != nil {
		return nil, err
	}
	for _, v := range i.volumes {
		if err := folder(v, 0o755, 65532); err != nil {
			return nil, err
		}
	}
	given := slices.ContainsFunc(p.files, func(f file) bool { return f.target == "/etc/passwd" })
	if !given {
		if err := put("/etc/passwd", 0o644, []byte("root:x:0:0::/:/\nadit:x:65532:65532::/:/\n")); err != nil {
			return nil, err
		}
		if err := put("/etc/group", 0o644, []byte("root:x:0:\nadit:x:65532:\n")); err != nil {
			return nil, err
		}
	}
	if i.roots {
		if err := put("/etc/ssl/certs/ca-certificates.crt", 0o644, roots()); err != nil {
			return nil, err
		}
	}
	all, err := expand(p.files)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		info, err := os.Stat(f.source)
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(f.source)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := put(f.target, mode, content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// expand puts the files of folders in place of these, in the order of their targets.
func expand(list []file) ([]file, error) {
	var out []file
	for _, f := range list {
		err := filepath.WalkDir(f.source, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(f.source, name)
			out = append(out, file{source: name, target: path.Join(f.target, filepath.ToSlash(rel))})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b file) int { return strings.Compare(a.target, b.target) })
	return slices.CompactFunc(out, func(a, b file) bool { return a.target == b.target }), nil
}

// roots is the bundle of this build's version: the machine that builds has no say.
func roots() []byte {
	var b bytes.Buffer
	for r := range bundle.Roots() {
		c, err := x509.ParseCertificate(r.Certificate)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "# %s\n", c.Subject)
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate})
	}
	return b.Bytes()
}
