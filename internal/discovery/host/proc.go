package host

import (
	"bufio"
	"encoding/hex"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// listener is one TCP socket that waits for connections.
type listener struct {
	addr  netip.AddrPort
	inode uint64
}

// tcpListen is the state of such a socket in /proc/net/tcp.
const tcpListen = "0A"

// maxLines bounds what is read of /proc/net/tcp: a busy machine has a line per connection.
const maxLines = 200_000

// parseTCP reads /proc/net/tcp or tcp6. Lines that it does not know are left out.
func parseTCP(r io.Reader) ([]listener, error) {
	var out []listener
	s := bufio.NewScanner(r)
	for n := 0; n < maxLines && s.Scan(); n++ {
		f := strings.Fields(s.Text())
		if len(f) < 10 || f[3] != tcpListen {
			continue
		}
		addr, ok := parseAddr(f[1])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if ok && err == nil {
			out = append(out, listener{addr, inode})
		}
	}
	return out, s.Err()
}

// parseAddr reads an address as the kernel writes it: 32-bit words in the order of the machine,
// which is little-endian wherever Adit is built for.
func parseAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || n == 0 {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok
}
