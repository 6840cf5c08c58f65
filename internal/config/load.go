package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

const fileSuffix = "-file"

// Error is a setting that cannot be used.
type Error struct {
	// Field is the setting; Source where its value came from.
	Field, Source string
	// Problem names value and remedy.
	Problem string
}

func (e *Error) Error() string {
	if e.Source == "" {
		return e.Field + ": " + e.Problem
	}
	return fmt.Sprintf("%s (%s): %s", e.Field, e.Source, e.Problem)
}

// Sources are where settings come from.
type Sources struct {
	Program Program
	// Flags after parsing; those not given on the command line do not count.
	Flags *pflag.FlagSet
	// Environ is os.Environ, or a test's.
	Environ []string
	// File is the YAML file named by --config or ADIT_CONFIG; empty = none.
	File string
	// Stdin is what a secret in the file "-" is read from.
	Stdin io.Reader
}

// Values are the effective settings of a program.
type Values struct {
	Program Program
	// Warnings are said once, by whoever has a logger.
	Warnings []string
	k        *koanf.Koanf
	source   map[string]string
	text     map[string]string
	// secretFile is the path that a secret was read from.
	secretFile map[string]string
	// file is the YAML file, fromFile the settings it decided.
	file     string
	fromFile map[string]bool
}

// Bind adds the flags of a program, with --config, to fs. Flags that fs has already (the global
// ones) stay as they are.
func Bind(fs *pflag.FlagSet, p Program) {
	var names []string
	for _, s := range Settings(p) {
		names = append(names, s.Name)
	}
	bind(fs, p != ForClient, names)
}

// BindSome defines the flags of some settings, and --config.
func BindSome(fs *pflag.FlagSet, names ...string) { bind(fs, true, names) }

func bind(fs *pflag.FlagSet, file bool, names []string) {
	add := func(name, def, kind, help string) {
		if fs.Lookup(name) == nil {
			fs.Var(&flagText{def, kind}, name, help)
		}
	}
	if file {
		add("config", "", "file", "YAML file with the same keys")
	}
	for _, name := range names {
		s := Lookup(name)
		if s.Kind == Bool {
			if fs.Lookup(s.Name) == nil {
				fs.Bool(s.Name, s.Default == "true", s.Help)
			}
			continue
		}
		add(s.Name, s.DefaultText(), s.Kind.flagType(), s.Help)
		if s.Secret {
			add(s.Name+fileSuffix, "", "file", "file that holds what --"+s.Name+" says; - is standard input")
		}
	}
}

// flagText is a flag as it was written; Load reads it as its setting's kind.
type flagText struct{ text, kind string }

func (f *flagText) String() string     { return f.text }
func (f *flagText) Set(s string) error { f.text = s; return nil }
func (f *flagText) Type() string       { return f.kind }

// layer is what one source says: setting name (or its -file twin) to text.
type layer struct {
	name   func(setting string) string
	values map[string]string
}

// Load merges the sources. The error joins every *Error found.
func Load(src Sources) (*Values, error) {
	env := environ(src.Environ)
	v := &Values{Program: src.Program, source: map[string]string{}, text: map[string]string{},
		secretFile: map[string]string{}, fromFile: map[string]bool{}}
	fileName := src.File
	if fileName == "" {
		fileName = env["ADIT_CONFIG"]
	}
	var errs []error
	v.file = fileName
	fromFile, err := fileLayer(fileName, src.Program)
	if err != nil {
		errs = append(errs, err)
	}
	layers := []layer{defaultLayer(src.Program), fromFile, v.envLayer(env, src.Program), v.flagLayer(src.Flags, src.Program)}
	typed := map[string]any{}
	for _, s := range Settings(src.Program) {
		found, err := effective(s, layers, src.Stdin)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if found.val == "" && s.EmptyMeans == "" && s.Kind != JSONList {
			found.val = s.Default
		}
		parsed, err := s.parse(found.val)
		if err != nil {
			errs = append(errs, &Error{Field: s.Name, Source: found.source, Problem: hide(s, found.val, err)})
			continue
		}
		v.source[s.Name], v.text[s.Name], typed[s.Name] = found.source, found.val, parsed
		v.secretFile[s.Name], v.fromFile[s.Name] = found.path, found.layer == 1
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	v.k = koanf.New(".")
	if err := v.k.Load(confmap.Provider(typed, ""), nil); err != nil {
		return nil, err
	}
	return v, nil
}

// hide keeps a secret's value out of an error.
func hide(s *Setting, val string, err error) string {
	if s.Secret && val != "" {
		return strings.ReplaceAll(err.Error(), val, "…")
	}
	return err.Error()
}

// choice is the text of a setting and where it came from.
type choice struct {
	val, source string
	// path is the file of a secret; layer the index of the source.
	path  string
	layer int
}

// effective takes s from the highest layer that gives it, as itself or as a file.
func effective(s *Setting, layers []layer, stdin io.Reader) (choice, error) {
	for i, l := range slices.Backward(layers) {
		val, ok := l.values[s.Name]
		path, isFile := l.values[s.Name+fileSuffix]
		isFile = isFile && s.Secret && path != ""
		if ok && isFile && val != "" {
			return choice{}, &Error{Field: s.Name, Source: l.name(s.Name), Problem: "is given twice, as a value and as " + l.name(s.Name+fileSuffix) + "; give one of them"}
		}
		if isFile {
			path, err := inFolder(s, path)
			if err == nil {
				val, err = readSecret(path, stdin)
			}
			if err != nil {
				return choice{}, &Error{Field: s.Name + fileSuffix, Source: l.name(s.Name + fileSuffix), Problem: err.Error()}
			}
			return choice{val: val, source: l.name(s.Name+fileSuffix) + " " + path, path: path, layer: i}, nil
		}
		if ok {
			return choice{val: val, source: l.name(s.Name), layer: i}, nil
		}
	}
	return choice{source: "default"}, nil
}

// inFolder is path, or where path is a folder (as a Secret of Kubernetes is mounted) the file in it that
// is named like the variable of s, or like one of the names accepted for it.
func inFolder(s *Setting, path string) (string, error) {
	// What cannot be looked at is told when it is read.
	if info, _ := os.Stat(path); info == nil || !info.IsDir() {
		return path, nil
	}
	names := []string{s.Env()}
	for _, a := range aliases {
		if a.New == s.Env() {
			names = append(names, a.Old)
		}
	}
	for _, name := range names {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("the folder %s has none of the files %s; add one, or name the file itself", path, strings.Join(names, ", "))
}

func readSecret(path string, stdin io.Reader) (string, error) {
	var b []byte
	var err error
	if path == "-" {
		if stdin == nil {
			return "", errors.New("there is no standard input to read the secret from")
		}
		b, err = io.ReadAll(io.LimitReader(stdin, 64<<10))
	} else {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the secret: %w; check the path and its permissions", err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return "", fmt.Errorf("%s is empty; write the secret into it", path)
	}
	return s, nil
}

func environ(list []string) map[string]string {
	m := make(map[string]string, len(list))
	for _, e := range list {
		if k, v, ok := strings.Cut(e, "="); ok {
			m[k] = v
		}
	}
	return m
}

func defaultLayer(p Program) layer {
	l := layer{name: func(string) string { return "default" }, values: map[string]string{}}
	for _, s := range Settings(p) {
		l.values[s.Name] = s.DefaultText()
	}
	return l
}

func (v *Values) flagLayer(fs *pflag.FlagSet, p Program) layer {
	l := layer{name: func(n string) string { return "flag --" + n }, values: map[string]string{}}
	if fs == nil {
		return l
	}
	for _, s := range Settings(p) {
		if f := fs.Lookup(s.Name); f != nil && f.Changed {
			l.values[s.Name] = f.Value.String()
			if s.Secret && secretInside(s, f.Value.String()) {
				v.Warnings = append(v.Warnings, fmt.Sprintf("--%s shows a secret to every user of this machine; use --%s-file or %s_FILE", s.Name, s.Name, s.Env()))
			}
		}
		if f := fs.Lookup(s.Name + fileSuffix); s.Secret && f != nil && f.Changed {
			l.values[s.Name+fileSuffix] = f.Value.String()
		}
	}
	return l
}

// secretInside is false for a database URL without credentials.
func secretInside(s *Setting, val string) bool {
	return s.Name != "database-url" || strings.Contains(val, "@")
}

func (v *Values) envLayer(env map[string]string, p Program) layer {
	l := layer{name: func(n string) string {
		if s := Lookup(n); s != nil {
			return "environment " + s.Env()
		}
		s := Lookup(strings.TrimSuffix(n, fileSuffix))
		return "environment " + s.Env() + "_FILE"
	}, values: map[string]string{}}
	env = maps.Clone(env)
	v.applyAliases(env, p)
	for _, s := range Settings(p) {
		// An empty variable is what manifests leave behind; it counts only where empty means
		// something.
		if val, ok := env[s.Env()]; ok && (val != "" || s.EmptyMeans != "") {
			l.values[s.Name] = val
		}
		if path := env[s.Env()+"_FILE"]; s.Secret && path != "" {
			l.values[s.Name+fileSuffix] = path
		}
	}
	return l
}

// applyAliases gives the settings in env their own names; a setting's own name wins.
func (v *Values) applyAliases(env map[string]string, p Program) {
	for _, a := range aliases {
		for _, suffix := range []string{"", "_FILE"} {
			old := a.Old + suffix
			val := env[old]
			if val == "" {
				continue
			}
			if a.New == "" {
				v.Warnings = append(v.Warnings, old+" is set, but this version has no such feature yet; it is ignored")
				continue
			}
			s := settingOfEnv(a.New, p)
			if s == nil || (suffix != "" && !s.Secret) {
				continue
			}
			if env[a.New] == "" && env[a.New+"_FILE"] == "" {
				env[a.New+suffix] = val
				v.Warnings = append(v.Warnings, old+" is accepted; its name here is "+a.New+suffix)
			}
		}
	}
}

func settingOfEnv(name string, p Program) *Setting {
	for _, s := range Settings(p) {
		if s.Env() == name {
			return s
		}
	}
	return nil
}

func fileLayer(path string, p Program) (layer, error) {
	l := layer{name: func(n string) string { return "file " + path + ", key " + n }, values: map[string]string{}}
	if path == "" {
		return l, nil
	}
	k := koanf.New("\x00")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		problem := err.Error() + "; it must be a YAML mapping"
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			problem = err.Error() + "; check the path and its permissions"
		}
		return l, &Error{Field: "config", Source: path, Problem: problem}
	}
	var errs []error
	raw := k.Raw()
	for _, written := range slices.Sorted(maps.Keys(raw)) {
		// JSON and Kubernetes people write tcp_services for tcp-services.
		key := strings.ReplaceAll(written, "_", "-")
		if key != written && raw[key] != nil {
			errs = append(errs, &Error{Field: written, Source: "file " + path, Problem: "is given twice, also as " + key + "; give one of them"})
			continue
		}
		s := Lookup(key)
		twin := false
		if s == nil {
			if base := Lookup(strings.TrimSuffix(key, fileSuffix)); base != nil && base.Secret && base.Name != key {
				s, twin = base, true
			}
		}
		switch {
		case s == nil:
			errs = append(errs, &Error{Field: written, Source: "file " + path, Problem: "is not a setting" + suggest(key, p)})
			continue
		case s.For&p == 0:
			errs = append(errs, &Error{Field: key, Source: "file " + path, Problem: fmt.Sprintf("is not a setting of the %s; remove it", p)})
			continue
		}
		val, err := s.text(raw[written])
		if twin {
			val, err = (&Setting{Kind: Text}).text(raw[written])
		}
		if err != nil {
			errs = append(errs, &Error{Field: key, Source: "file " + path, Problem: err.Error()})
			continue
		}
		l.values[key] = val
	}
	return l, errors.Join(errs...)
}

// suggest names the setting that key was probably meant to be.
func suggest(key string, p Program) string {
	want := strings.ToLower(key)
	for _, s := range Settings(p) {
		if s.Name == want || strings.ReplaceAll(s.Name, "-", "") == strings.ReplaceAll(want, "-", "") {
			return "; did you mean " + s.Name + "?"
		}
	}
	return fmt.Sprintf("; `adit config print %s` lists them", p)
}
