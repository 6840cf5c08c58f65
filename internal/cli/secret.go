package cli

import (
	"io"
	"os"
	"strings"
)

// maxSecret bounds what is read as a secret.
const maxSecret = 64 << 10

// readSecret reads the file that a flag names; - is standard input, no file an empty secret. The
// line break at its end does not count.
func (a *app) readSecret(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	in := a.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", usageErrorf("--%s: %w", flag, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err != nil {
		return "", usageErrorf("--%s: %w", flag, err)
	}
	s := strings.TrimRight(string(b), "\r\n")
	switch {
	case len(b) > maxSecret:
		return "", usageErrorf("--%s: %s is too large for a secret", flag, path)
	case s == "":
		return "", usageErrorf("--%s: %s is empty", flag, path)
	}
	return s, nil
}
