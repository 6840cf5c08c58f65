//go:build !linux

package datagram

import "net"

// reading is nothing here: only Linux lets QUIC share its socket.
type reading struct{}

// Share returns conn itself and no carrier: QUIC has the socket alone.
func Share(conn *net.UDPConn) (transport net.PacketConn, c *Carrier) { return conn, nil }
