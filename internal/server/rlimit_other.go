//go:build !unix

package server

func capConnections(max int) int { return max }
