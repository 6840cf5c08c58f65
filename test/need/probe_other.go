//go:build !linux

package need

import "errors"

var errNotLinux = errors.New("not Linux")

func notLinux() error { return errNotLinux }

var probes = map[Feature]func() error{
	IPv6: func() error { return nil },

	NetNamespaces: notLinux, Mounts: notLinux, Netfilter: notLinux, BBR: notLinux,
	Netem: notLinux, UDPGSO: notLinux, RTOMin: notLinux, TUN: notLinux,
}
