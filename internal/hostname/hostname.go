// Package hostname holds the one rule for host names: what a name looks like, which patterns
// exist, what they match and when two of them overlap. The hub claims with it, the edge matches
// with it.
package hostname

import (
	"fmt"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253
	maxLabel = 63
)

// Unicode names become what browsers send for them.
var toASCII = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false))

// Normalize returns name in its one spelling: ASCII (IDNA), lower case, without a trailing dot.
// It fails for what no host can be called. A name already in that spelling costs no allocation.
func Normalize(name string) (string, error) {
	orig := name
	for i := 0; i < len(name); i++ {
		if name[i] >= 0x80 {
			a, err := toASCII.ToASCII(name)
			if err != nil {
				return "", fmt.Errorf("host name %q: not a valid international name", clip(orig))
			}
			name = a
			break
		}
	}
	name = strings.TrimSuffix(lower(name), ".")
	if err := check(name); err != nil {
		return "", fmt.Errorf("host name %q: %w", clip(orig), err)
	}
	return name, nil
}

// FromHost normalizes the value of a Host header or :authority: a port is ignored. IP addresses
// are no host names.
func FromHost(host string) (string, error) {
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		for _, c := range host[i+1:] {
			if c < '0' || c > '9' {
				return "", fmt.Errorf("host %q: the port is not a number", clip(host))
			}
		}
		host = host[:i]
	}
	return Normalize(host)
}

func lower(s string) string {
	for i := 0; i < len(s); i++ {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return strings.ToLower(s)
		}
	}
	return s
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

func check(name string) error {
	if name == "" {
		return fmt.Errorf("is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("has %d characters, at most %d are possible", len(name), maxName)
	}
	start, numeric := 0, true
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '.' {
			c := name[i]
			switch {
			case '0' <= c && c <= '9':
			case 'a' <= c && c <= 'z', c == '-', c == '_':
				numeric = false
			default:
				return fmt.Errorf("has the character %q; letters, digits, hyphens and dots are possible", c)
			}
			continue
		}
		label := name[start:i]
		switch {
		case label == "":
			return fmt.Errorf("has an empty label")
		case len(label) > maxLabel:
			return fmt.Errorf("has a label of %d characters, at most %d are possible", len(label), maxLabel)
		case label[0] == '-' || label[len(label)-1] == '-':
			return fmt.Errorf("has a label that starts or ends with a hyphen")
		}
		if i == len(name) && numeric {
			return fmt.Errorf("is an IP address or ends in a number")
		}
		start, numeric = i+1, true
	}
	return nil
}

// Below reports whether name lies below parent (not parent itself), on a label boundary. Both
// are normalized.
func Below(name, parent string) bool {
	return len(name) > len(parent)+1 && name[len(name)-len(parent)-1] == '.' && strings.HasSuffix(name, parent)
}

// Depth says how many labels a pattern's wildcard stands for.
type Depth int

// Depths, the most specific first.
const (
	Exact Depth = iota // a.example.com
	One                // *.example.com: one label
	Many               // **.example.com: one label or more
)

// Pattern is an exact name, "*.x" or "**.x". The apex x is covered by neither wildcard, and a
// wildcard never stands for a label that starts with an underscore.
type Pattern struct {
	// Depth of the wildcard.
	Depth Depth
	// Name is the exact name, or x.
	Name string
}

// Parse reads a pattern as a grant or a declaration spells it.
func Parse(s string) (Pattern, error) {
	p := Pattern{Name: s}
	if rest, ok := strings.CutPrefix(s, "**."); ok {
		p = Pattern{Many, rest}
	} else if rest, ok := strings.CutPrefix(s, "*."); ok {
		p = Pattern{One, rest}
	}
	if strings.Contains(p.Name, "*") {
		return Pattern{}, fmt.Errorf("host name %q: a wildcard is the whole first label, as *.example.com or **.example.com", clip(s))
	}
	n, err := Normalize(p.Name)
	if err != nil {
		return Pattern{}, err
	}
	p.Name = n
	if p.Depth == Exact && !strings.Contains(n, ".") {
		return Pattern{}, fmt.Errorf("host name %q: has no dot; give the full name", clip(s))
	}
	if len(p.String()) > maxName {
		return Pattern{}, fmt.Errorf("host name %q: has more than %d characters", clip(s), maxName)
	}
	if hidden(n) {
		return Pattern{}, fmt.Errorf("host name %q: labels that start with an underscore are reserved", clip(s))
	}
	return p, nil
}

// Valid reports whether s is a pattern in its one spelling.
func Valid(s string) bool {
	p, err := Parse(s)
	return err == nil && p.String() == s
}

// String is the pattern in its one spelling.
func (p Pattern) String() string {
	switch p.Depth {
	case One:
		return "*." + p.Name
	case Many:
		return "**." + p.Name
	default:
		return p.Name
	}
}

// Match reports whether p stands for the normalized name.
func (p Pattern) Match(name string) bool {
	switch p.Depth {
	case Exact:
		return name == p.Name && !hidden(name)
	case One:
		return Below(name, p.Name) && strings.IndexByte(name, '.') == len(name)-len(p.Name)-1 && !hidden(name)
	default:
		return Below(name, p.Name) && !hidden(name)
	}
}

// Covers reports whether every name of q is one of p.
func (p Pattern) Covers(q Pattern) bool {
	switch {
	case q.Depth == Exact:
		return p.Match(q.Name)
	case p.Depth == Many:
		return q.Name == p.Name || Below(q.Name, p.Name)
	default:
		return p == q
	}
}

// Overlaps reports whether some name is one of p and of q. Patterns form a tree: two of them
// overlap only if one covers the other (*.y never reaches two labels deep, into **.x below y).
func (p Pattern) Overlaps(q Pattern) bool { return p.Covers(q) || q.Covers(p) }

// hidden reports whether a label starts with an underscore: _acme-challenge and its like.
func hidden(name string) bool {
	return name != "" && (name[0] == '_' || strings.Contains(name, "._"))
}
