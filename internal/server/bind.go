package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"syscall"
)

// BindError is a listen flag whose address cannot be had.
type BindError struct {
	// Flag is the name of the setting; Network is tcp or udp.
	Flag, Network, Address string
	// Holder is the program that has the port, if it could be found.
	Holder string
	Err    error
}

func (e *BindError) Error() string {
	what := fmt.Sprintf("--%s: cannot listen on %s (%s)", e.Flag, e.Address, e.Network)
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE) && e.Holder != "":
		return fmt.Sprintf("%s: %s has this port; stop it, or choose another address with --%s", what, e.Holder, e.Flag)
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return fmt.Sprintf("%s: another program has this port; stop it, or choose another address with --%s", what, e.Flag)
	case errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("%s: ports below 1024 need the right to bind them; run as a service with AmbientCapabilities=CAP_NET_BIND_SERVICE, or choose a higher port with --%s", what, e.Flag)
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("%s: this machine has no such address; choose another with --%s", what, e.Flag)
	}
	return fmt.Sprintf("%s: %v; choose another address with --%s", what, e.Err, e.Flag)
}

func (e *BindError) Unwrap() error { return e.Err }

// NewBindError explains why the address of a listen flag cannot be had.
func NewBindError(flag, network, addr string, err error) error {
	e := &BindError{Flag: flag, Network: network, Address: addr, Err: err}
	var op *net.OpError
	if errors.As(err, &op) && len(op.Net) >= 3 && op.Net != "unix" {
		e.Network = op.Net[:3]
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		if _, port, err := net.SplitHostPort(addr); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil {
				e.Holder = PortHolder(e.Network, uint16(n))
			}
		}
	}
	return e
}
