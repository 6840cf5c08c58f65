package store

import "strings"

// contains is a condition that column holds a text as a part, in either case; its argument is made
// by likePattern.
func contains(column string) string { return "lower(" + column + `) LIKE ? ESCAPE '\'` }

// likePattern is s as a part of a text, for contains.
func likePattern(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(strings.ToLower(s)) + "%"
}
