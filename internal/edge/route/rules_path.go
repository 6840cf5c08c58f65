package route

import (
	"fmt"
	"slices"
	"strings"
)

// Path is a request's path with every reading of it that an origin may have. It goes to the
// origin byte for byte; decisions are made on the readings, and only where all of them agree.
//
// A plain path has one reading. Doubled and encoded slashes, backslashes and ";parameters" make
// more, because servers differ about them. Dot segments, in any spelling, are refused: clients
// resolve them before they send, so only an attempt to get around a decision carries them.
type Path struct {
	// Raw is the path as the visitor sent it, escaped.
	Raw string
	// Readings are unescaped, at least one; the first is the literal one, in which an encoded
	// slash is part of its segment and stays "%2F".
	Readings []string
}

// ParsePath reads an escaped path, which starts with a slash.
func ParsePath(raw string) (Path, error) {
	if raw == "" || raw[0] != '/' {
		return Path{}, fmt.Errorf("the path does not start with a slash")
	}
	p := Path{Raw: raw}
	if plain(raw) {
		p.Readings = []string{raw}
		return p, nil
	}
	literal, err := unescape(raw)
	if err != nil {
		return Path{}, err
	}
	p.Readings = []string{literal}
	for _, f := range readings {
		for _, known := range slices.Clone(p.Readings) {
			if r := f(known); !slices.Contains(p.Readings, r) {
				p.Readings = append(p.Readings, r)
			}
		}
	}
	for _, r := range p.Readings {
		if dotted(r) {
			return Path{}, fmt.Errorf("the path has dot segments; send it resolved")
		}
	}
	return p, nil
}

// Below reports whether some reading of the path lies at prefix or below it, and whether every
// one does. The prefix has no slash at its end.
func (p Path) Below(prefix string) (some, all bool) {
	all = true
	for _, r := range p.Readings {
		if below(r, prefix) {
			some = true
		} else {
			all = false
		}
	}
	return some, all
}

// readings are what servers do to a path beyond percent-decoding, each on its own or together.
var readings = []func(string) string{
	func(s string) string { return strings.NewReplacer("%2F", "/", `\`, "/").Replace(s) },
	dropParameters,
	mergeSlashes, // last: the others make doubled slashes
}

// plain reports whether raw has one reading only: the common case, without allocation.
func plain(raw string) bool {
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '%', '\\', ';':
			return false
		case '/':
			if i+1 < len(raw) && (raw[i+1] == '/' || raw[i+1] == '.') {
				return false
			}
		}
	}
	return true
}

// unescape decodes everything but encoded slashes, which become "%2F" in that spelling. An
// encoded percent sign stays encoded when it would make one up.
func unescape(raw string) (string, error) {
	var b strings.Builder
	b.Grow(len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '%' {
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(raw) || !hexDigit(raw[i+1]) || !hexDigit(raw[i+2]) {
			return "", fmt.Errorf("the path has a percent sign without two hexadecimal digits")
		}
		c = fromHex(raw[i+1])<<4 | fromHex(raw[i+2])
		i += 2
		switch c {
		case 0:
			return "", fmt.Errorf("the path has a zero byte")
		case '/':
			b.WriteString("%2F")
		case '%':
			b.WriteString("%25")
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func fromHex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}

func mergeSlashes(s string) string {
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	return s
}

// dropParameters removes ";…" from every segment.
func dropParameters(s string) string {
	if !strings.Contains(s, ";") {
		return s
	}
	segments := strings.Split(s, "/")
	for i, seg := range segments {
		segments[i], _, _ = strings.Cut(seg, ";")
	}
	return strings.Join(segments, "/")
}

func dotted(s string) bool {
	for seg := range strings.SplitSeq(s, "/") {
		if seg == "." || seg == ".." {
			return true
		}
	}
	return false
}

// below reports whether path is prefix or lies below it, segment by segment. The prefix has no
// slash at its end; "" is above everything.
func below(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
}
