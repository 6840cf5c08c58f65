package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/adit-dev/adit/internal/hostname"
)

const (
	required = true
	optional = false
)

// entry is one mapping of a service list while it is read. Each reader notes a problem and
// returns the zero value, so that one pass finds all problems of an entry.
type entry struct {
	p      *serviceParser
	key    string
	label  string
	node   *yaml.Node
	values map[string]*yaml.Node
	failed bool
}

// newEntry checks the shape and the field names; nil if it is no mapping at all.
func newEntry(p *serviceParser, key string, n *yaml.Node, fields []string) *entry {
	e := &entry{p: p, key: key, node: n, values: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		p.fail(fmt.Errorf("%s%s is %s, want an object with the fields %s", key, line(n), kindOf(n), strings.Join(fields, ", ")))
		return nil
	}
	for _, f := range []string{"hostname", "name"} {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if v := resolve(n.Content[i+1]); n.Content[i].Value == f && v.Kind == yaml.ScalarNode && e.label == "" {
				e.label = clip(v.Value)
			}
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, resolve(n.Content[i+1])
		switch {
		case !slices.Contains(fields, name):
			e.failAt(n.Content[i], clip(name), "is not known; the fields are %s", strings.Join(fields, ", "))
		case e.values[name] != nil:
			e.failAt(n.Content[i], name, "is there twice; keep one")
		default:
			e.values[name] = value
		}
	}
	return e
}

func (e *entry) fail(field, format string, args ...any) {
	n := e.values[field]
	if n == nil {
		n = e.node
	}
	e.failAt(n, field, format, args...)
}

func (e *entry) failAt(n *yaml.Node, field, format string, args ...any) {
	e.failed = true
	where := e.key
	if e.label != "" {
		where += fmt.Sprintf(" (%s)", e.label)
	}
	e.p.fail(fmt.Errorf("%s%s: field %q: %s", where, line(n), field, fmt.Sprintf(format, args...)))
}

// has reports whether the field is there; null counts as absent.
func (e *entry) has(field string) bool {
	n := e.values[field]
	return n != nil && !isNull(n)
}

func (e *entry) text(field string, must bool) string {
	n := e.values[field]
	if !e.has(field) {
		if must {
			e.fail(field, "is missing")
		}
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		e.fail(field, "is %s, want text in quotes", kindOf(n))
		return ""
	}
	if must && n.Value == "" {
		e.fail(field, "is empty")
	}
	return n.Value
}

func (e *entry) integer(field string, must bool, def, first, last uint32) uint32 {
	if !e.has(field) {
		if must {
			e.fail(field, "is missing; write a number from %d to %d", first, last)
		}
		return def
	}
	v, why := number(e.values[field], first, last)
	if why != "" {
		e.fail(field, "%s", why)
	}
	return v
}

func number(n *yaml.Node, first, last uint32) (uint32, string) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		return 0, fmt.Sprintf("is %s, want a number from %d to %d without quotes", kindOf(n), first, last)
	}
	v, err := strconv.ParseUint(n.Value, 10, 32)
	if err != nil || v < uint64(first) || v > uint64(last) {
		return 0, fmt.Sprintf("value %s is out of range; use %d to %d", clip(n.Value), first, last)
	}
	return uint32(v), ""
}

func (e *entry) boolean(field string) bool {
	if !e.has(field) {
		return false
	}
	n := e.values[field]
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		e.fail(field, "is %s, want true or false without quotes", kindOf(n))
		return false
	}
	return strings.EqualFold(n.Value, "true")
}

// oneOf returns the field's value, which must be def or one of others, or def if it is absent.
func (e *entry) oneOf(field, def string, others ...string) string {
	if !e.has(field) {
		return def
	}
	v := e.text(field, optional)
	if e.failed && v == "" {
		return def
	}
	all := others
	if !slices.Contains(others, def) {
		all = append([]string{def}, others...)
	}
	if !slices.Contains(all, v) {
		e.fail(field, "value %q is not known; use %s", clip(v), strings.Join(all, ", "))
		return def
	}
	return v
}

// tlsMode reads "passthrough" or "terminate", bare or as {"mode": …}.
func (e *entry) tlsMode() string {
	if n := e.values["tls_mode"]; n != nil && n.Kind == yaml.MappingNode {
		if len(n.Content) != 2 || n.Content[0].Value != "mode" {
			e.fail("tls_mode", `is an object with other fields than "mode"; write "passthrough" or "terminate"`)
			return "passthrough"
		}
		e.values["tls_mode"] = resolve(n.Content[1])
	}
	return e.oneOf("tls_mode", "passthrough", "terminate")
}

func (e *entry) portRange() (first, last uint32) {
	n := e.values["listen_port_range"]
	if n.Kind != yaml.SequenceNode || len(n.Content) != 2 {
		e.fail("listen_port_range", "is %s, want [first, last]", kindOf(n))
		return 0, 0
	}
	var v [2]uint32
	for i, c := range n.Content {
		var why string
		if v[i], why = number(resolve(c), 1, 65535); why != "" {
			e.fail("listen_port_range", "%s", why)
			return 0, 0
		}
	}
	switch {
	case v[0] > v[1]:
		e.fail("listen_port_range", "starts at %d and ends at %d; write the smaller port first", v[0], v[1])
	case v[1]-v[0]+1 > maxPortRange:
		e.fail("listen_port_range", "has %d ports, at most %d are possible; use several entries", v[1]-v[0]+1, maxPortRange)
	}
	return v[0], v[1]
}

// portList reads a list of ports, in order and without doubles.
func (e *entry) portList(field string) []uint32 {
	if !e.has(field) {
		return nil
	}
	n := e.values[field]
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxHTTPPorts {
		e.fail(field, "is %s, want a list of at most %d ports, as [80, 8080]", kindOf(n), maxHTTPPorts)
		return nil
	}
	var out []uint32
	for _, c := range n.Content {
		v, why := number(resolve(c), 1, 65535)
		if why != "" {
			e.fail(field, "%s", why)
			return nil
		}
		out = append(out, v)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (e *entry) name(must bool) string {
	s := e.text("name", must)
	switch {
	case len(s) > maxServiceName:
		e.fail("name", "has %d bytes, at most %d are possible", len(s), maxServiceName)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		e.fail("name", "value %q has control characters; use letters, digits and hyphens", clip(s))
	}
	return s
}

func (e *entry) serverName() string {
	s := e.text("origin_server_name", optional)
	if s == "" {
		return ""
	}
	n, err := hostname.Normalize(s)
	if err != nil {
		e.fail("origin_server_name", "%v", err)
	}
	return n
}

func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; i < 8 && n.Kind == yaml.AliasNode && n.Alias != nil; i++ {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// line is where a node of the YAML file stands; JSON text has no lines.
func line(n *yaml.Node) string {
	if n == nil || n.Line == 0 {
		return ""
	}
	return fmt.Sprintf(", line %d", n.Line)
}

// kindOf names what a node is, with its value where that is short.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!str":
		return fmt.Sprintf("the text %q", clip(n.Value))
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	case "!!bool":
		return clip(n.Value)
	case "!!null":
		return "null"
	}
	return fmt.Sprintf("%q", clip(n.Value))
}

func clip(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

func underscored(s string) string { return strings.ReplaceAll(s, "-", "_") }

// parseJSON reads JSON text into the same tree as YAML, so that both lists have one reader.
func parseJSON(text string) (*yaml.Node, error) {
	if len(text) > maxListBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are possible", len(text), maxListBytes)
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	n, err := jsonNode(dec, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("byte %d: there is more text after the list", dec.InputOffset())
	}
	return n, nil
}

func jsonNode(dec *json.Decoder, depth int) (*yaml.Node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, v string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: v}, nil
	}
	switch v := tok.(type) {
	case string:
		return scalar("!!str", v)
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	case nil:
		return scalar("!!null", "null")
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return scalar("!!float", v.String())
		}
		return scalar("!!int", v.String())
	}
	if depth > 8 {
		return nil, errors.New("nested too deeply")
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	if tok == json.Delim('{') {
		n = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	for dec.More() {
		c, err := jsonNode(dec, depth+1)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, c)
	}
	_, err = dec.Token() // the closing bracket
	return n, err
}
