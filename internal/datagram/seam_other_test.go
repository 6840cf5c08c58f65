//go:build !linux

package datagram

func cannotJoin(*Socket) {}
