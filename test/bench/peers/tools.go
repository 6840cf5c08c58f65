//go:build tools

// Package peers pins the programs that the benchmark runs beside Adit. They are built from
// this module of their own and never linked.
package peers

import (
	_ "github.com/fatedier/frp/cmd/frpc"
	_ "github.com/fatedier/frp/cmd/frps"
	_ "github.com/jpillora/chisel"
)
