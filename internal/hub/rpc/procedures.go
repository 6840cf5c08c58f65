package rpc

import (
	"cmp"
	"slices"
	"strings"
)

// Procedure is who may call one procedure, for documentation.
type Procedure struct {
	// Name is "Service/Procedure".
	Name string
	// Role is the least role of people that may call it; empty: nobody needs to sign in.
	Role string
	// Scope is what a key with scopes needs: "*" is any, empty means that no such key will do.
	Scope string
	// Fresh procedures want a sign-in younger than ten minutes, Local ones the server's admin.key.
	Fresh, Local bool
}

// Procedures are those for people, by name.
func Procedures() []Procedure {
	var out []Procedure
	for path, w := range access {
		if len(w.machines) > 0 {
			continue
		}
		out = append(out, Procedure{Name: strings.TrimPrefix(path, "/adit.hub.v1."), Role: w.people, Scope: w.scope, Fresh: w.fresh, Local: w.local})
	}
	slices.SortFunc(out, func(a, b Procedure) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
