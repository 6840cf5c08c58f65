package hub

import "strings"

// maxLabel is how long one label of a host name may be.
const maxLabel = 63

// sanitiseLabel makes a label of what a person typed: lower case; "_", space and "." become
// hyphens, other characters go, hyphens are collapsed and trimmed, and what is longer than 63 is
// cut. Nothing may be left.
func sanitiseLabel(s string) string {
	var b strings.Builder
	hyphen := false
	for _, c := range strings.ToLower(s) {
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			if hyphen && b.Len() > 0 {
				b.WriteByte('-')
			}
			hyphen = false
			b.WriteRune(c)
		case c == '-' || c == '_' || c == ' ' || c == '.':
			hyphen = true
		}
	}
	out := b.String()
	return strings.TrimRight(out[:min(len(out), maxLabel)], "-")
}
