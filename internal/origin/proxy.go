package origin

import (
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// proxyHeader is the PROXY header of version (0 = none) for the stream of h: the visitor's address
// and the edge's that it connected to, both in one family. Without them it says so (UNKNOWN, LOCAL).
func proxyHeader(version byte, h *wirev1.StreamHeader) ([]byte, error) {
	if version == 0 {
		return nil, nil
	}
	p := &proxyproto.Header{Version: version, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}
	from, err1 := netip.ParseAddrPort(h.GetVisitorAddress())
	to, err2 := netip.ParseAddrPort(h.GetEdgeAddress())
	if err1 == nil && err2 == nil {
		src, dst := from.Addr().Unmap().WithZone(""), to.Addr().Unmap().WithZone("")
		p.Command, p.TransportProtocol = proxyproto.PROXY, proxyproto.TCPv4
		if !src.Is4() || !dst.Is4() {
			p.TransportProtocol = proxyproto.TCPv6
			src, dst = netip.AddrFrom16(src.As16()), netip.AddrFrom16(dst.As16())
		}
		p.SourceAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, from.Port()))
		p.DestinationAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(dst, to.Port()))
	}
	return p.Format()
}
