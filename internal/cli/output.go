package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"
)

const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// print writes v as JSON or YAML, or calls human.
func (a *app) print(v any, human func() error) error {
	switch a.output {
	case outputJSON:
		e := json.NewEncoder(a.Stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case outputYAML:
		return a.printYAML(v)
	}
	return human()
}

// printYAML goes through JSON, so that both have the same keys in the same order.
func (a *app) printYAML(v any) error {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(buf.Bytes(), &n); err != nil {
		return err
	}
	plain(&n)
	y := yaml.NewEncoder(a.Stdout)
	y.SetIndent(2)
	if err := y.Encode(&n); err != nil {
		return err
	}
	return y.Close()
}

// plain drops the flow style and the quotes that came from JSON.
func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// table writes aligned columns; with --quiet the first column only, without a heading.
func (a *app) table(head []string, rows [][]string) error {
	if a.quiet {
		for _, r := range rows {
			fmt.Fprintln(a.Stdout, r[0])
		}
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, r := range rows {
		for i, c := range r {
			if c == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// fields writes one object as "name: value" lines, without empty ones.
func (a *app) fields(pairs ...string) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", pairs[i], pairs[i+1])
		}
	}
	return w.Flush()
}

// say writes a line for people: not with --quiet, and never between the lines of JSON.
func (a *app) say(format string, args ...any) {
	if !a.quiet && a.output == outputTable {
		fmt.Fprintf(a.Stdout, format+"\n", args...)
	}
}

// warn writes a line to standard error.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "adit: warning: "+format+"\n", args...)
}
