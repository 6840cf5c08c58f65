package telemetry

import (
	"regexp"
	"strings"
)

// hidden stands where a secret was.
const hidden = "[redacted]"

// secretName is what fields that hold secrets are called, in JSON, in queries and in text.
const secretName = `(?:[a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|ticket|session[_-]?id|signature)[a-z0-9_.-]*|pwd|pass|key|code|sig|auth)`

var redactions = []struct {
	what *regexp.Regexp
	with string
}{
	// Tokens and keys of ours, wherever they stand.
	{regexp.MustCompile(`adit_(?:invite|agent|edge|key|admin)_[A-Za-z0-9_-]+`), hidden},
	// Blocks of PEM, in one line or several, cut or whole.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`), hidden},
	// Headers: what follows the name up to the end of the line or of the quotes.
	{regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|set-cookie|cookie|x-api-key|adit-service-token)(\\?["']?\s*[:=]\s*\\?["'\[]*)[^"'\r\n\\\]]+`), "${1}${2}" + hidden},
	{regexp.MustCompile(`(?i)\b(bearer|basic|digest|negotiate|ntlm)\s+[A-Za-z0-9._~+/=-]{4,}`), "${1} " + hidden},
	// scheme://user:password@host.
	{regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^\s/?#"'@]*:[^\s/"']*@`), "${1}" + hidden + "@"},
	// "name":"value" in JSON, also where it stands escaped in a string.
	{regexp.MustCompile(`(?i)(\\?["']` + secretName + `\\?["']\s*:\s*\\?["'])(?:[^"'\\]|\\[^"'])*`), "${1}" + hidden},
	// name=value in queries, forms and text.
	{regexp.MustCompile(`(?i)([?&;\s"']|^)(` + secretName + `)=("(?:[^"\\]|\\.)*"|[^\s&;"'#]+)`), "${1}${2}=" + hidden},
	// A compact JSON Web Token.
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), hidden},
}

// Redact takes secrets out of a line of a log: our tokens and keys, authorizations, cookies,
// passwords in JSON, queries and URLs. The rest stays.
func Redact(line string) string {
	if !strings.ContainsAny(line, "=:_-. ") {
		return line
	}
	for _, r := range redactions {
		line = r.what.ReplaceAllString(line, r.with)
	}
	return line
}
