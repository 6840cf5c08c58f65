package config

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the type of a setting.
type Kind uint8

// Kinds, with the Go type that a parsed value has.
const (
	Text         Kind = iota // string
	Word                     // string, one of Choices
	Words                    // []string, comma list
	Bool                     // bool
	Count                    // int, not negative
	Size                     // int, bytes
	Duration                 // time.Duration, not negative
	Address                  // string, host:port to listen on
	LocalAddress             // string, the same or unix:/path
	URL                      // string, https URL
	Networks                 // []string, each a netip.Prefix
	Ports                    // []PortRange
	JSONList                 // string, a JSON list
)

// flagType is the kind as --help names it.
func (k Kind) flagType() string {
	switch k {
	case Text, Word:
		return "string"
	case Words:
		return "list"
	case Count:
		return "number"
	case Size:
		return "size"
	case Duration:
		return "duration"
	case Address, LocalAddress:
		return "address"
	case URL:
		return "url"
	case Networks:
		return "networks"
	case Ports:
		return "ports"
	case JSONList:
		return "json"
	}
	return "bool"
}

// PortRange is an inclusive range of ports; a single port has First == Last.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains reports whether p is in r.
func (r PortRange) Contains(p uint16) bool { return r.First <= p && p <= r.Last }

// ParsePorts reads "P", "A-B" or a comma list of them.
func ParsePorts(s string) ([]PortRange, error) {
	var out []PortRange
	for _, part := range words(s) {
		a, b, ranged := strings.Cut(part, "-")
		if !ranged {
			b = a
		}
		first, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 16)
		last, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
		if err1 != nil || err2 != nil || first == 0 || last < first {
			return nil, fmt.Errorf("%q is not a port or a range of ports; write for example 2222 or 4000-4010", part)
		}
		out = append(out, PortRange{uint16(first), uint16(last)})
	}
	return out, nil
}

func words(s string) []string {
	var out []string
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// parse turns text into the Go value of the setting's kind. Errors name value and remedy; the
// caller adds the field.
func (s *Setting) parse(v string) (any, error) {
	if v == "" && s.Kind != Ports && (s.EmptyMeans != "" || s.Kind == Address) {
		return v, nil
	}
	switch s.Kind {
	case Text:
		return v, nil
	case Word:
		if v != "" && !slices.Contains(s.Choices, v) {
			return nil, fmt.Errorf("%q is not possible; use one of %s", v, strings.Join(s.Choices, ", "))
		}
		return v, nil
	case Words:
		return s.parseWords(v)
	case Bool:
		b, err := strconv.ParseBool(v)
		if err != nil {
			return nil, fmt.Errorf("%q is not true or false", v)
		}
		return b, nil
	case Count:
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a number of 0 or more", v)
		}
		return n, nil
	case Size:
		return parseSize(v)
	case Duration:
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("%q is not a duration; write for example 500ms, 25s or 5m", v)
		}
		return d, nil
	case LocalAddress:
		if path, unix := strings.CutPrefix(v, "unix:"); unix {
			if !filepath.IsAbs(path) {
				return nil, fmt.Errorf("%q names no socket; write unix: and an absolute path", v)
			}
			return v, nil
		}
		return parseAddress(v)
	case Address:
		return parseAddress(v)
	case URL:
		return parseURL(v)
	case Networks:
		return parseNetworks(v)
	case Ports:
		return ParsePorts(v)
	case JSONList:
		var l []json.RawMessage
		if v != "" {
			if err := json.Unmarshal([]byte(v), &l); err != nil {
				return nil, fmt.Errorf("is not a JSON list: %w; write for example []", err)
			}
		}
		return v, nil
	}
	return nil, fmt.Errorf("has no known kind")
}

func (s *Setting) parseWords(v string) (any, error) {
	list := words(v)
	for i, w := range list {
		if len(s.Choices) > 0 && !slices.Contains(s.Choices, w) {
			return nil, fmt.Errorf("%q is not possible; use a comma list of %s", w, strings.Join(s.Choices, ", "))
		}
		if slices.Contains(list[:i], w) {
			return nil, fmt.Errorf("%q is named twice; name it once", w)
		}
	}
	return list, nil
}

func parseSize(v string) (any, error) {
	num, unit := strings.TrimRight(v, "KiMB"), 1
	switch v[len(num):] {
	case "":
	case "KiB":
		unit = 1 << 10
	case "MiB":
		unit = 1 << 20
	default:
		num = "x"
	}
	n, err := strconv.Atoi(num)
	if err != nil || n < 0 || n > 1<<30/unit {
		return nil, fmt.Errorf("%q is not a size; write bytes, or for example 64KiB", v)
	}
	return n * unit, nil
}

func parseAddress(v string) (any, error) {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address; write host:port or :port, for example 127.0.0.1:8443 (IPv6 in brackets)", v)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, fmt.Errorf("%q has no port between 0 and 65535", v)
	}
	return v, nil
}

func parseURL(v string) (any, error) {
	if v == "" {
		return v, nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not an https URL; write for example https://hub.example.com", v)
	}
	return strings.TrimSuffix(v, "/"), nil
}

// parseNetworks gives text, which decoding turns into netip.Prefix: the layer between copies values
// field by field and would lose what a prefix keeps to itself.
func parseNetworks(v string) (any, error) {
	var out []string
	for _, w := range words(v) {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			a, err := netip.ParseAddr(w)
			if err != nil {
				return nil, fmt.Errorf("%q is not a network; write for example 10.0.0.0/8 or 192.0.2.7", w)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked().String())
	}
	return out, nil
}

// text turns a value of a YAML file into what a flag would say.
func (s *Setting) text(v any) (string, error) {
	if s.Kind == JSONList {
		if t, ok := v.(string); ok {
			return t, nil
		}
		b, err := json.Marshal(v)
		return string(b), err
	}
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(v), nil
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			switch e.(type) {
			case string, bool, int, int64, uint64, float64:
				parts[i] = fmt.Sprint(e)
			default:
				return "", fmt.Errorf("entry %d is not a plain value", i)
			}
		}
		return strings.Join(parts, ","), nil
	}
	return "", fmt.Errorf("is a mapping; write a plain value or a list")
}
