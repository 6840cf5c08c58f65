// Package h2connect switches on HTTP/2 extended CONNECT (RFC 8441) in net/http, which WebSockets
// over HTTP/2 need. Import it for its effect.
//
// net/http reads GODEBUG once, in an init of its own, so this package must be initialised
// before it: packages are initialised in the order of their import paths once what they import
// is ready, and this one imports nothing but os. A test of internal/edge/proxy asserts the
// setting on the wire.
package h2connect

import "os"

func init() {
	const on = "http2xconnect=1"
	v := os.Getenv("GODEBUG")
	if v != "" {
		v += ","
	}
	// Setenv of a constant name and value without NUL does not fail.
	_ = os.Setenv("GODEBUG", v+on)
}
