//go:build !linux

package server

// PortHolder cannot be told on this system.
func PortHolder(network string, port uint16) string { return "" }
