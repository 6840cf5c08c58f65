package telemetry

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
)

// unixPrefix marks an admin address that is a socket in the file system.
const unixPrefix = "unix:"

// ListenAdmin listens on an admin or health address: host:port, or unix:/path. A socket that a
// killed process left behind is replaced, one that answers is not.
func ListenAdmin(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	path, unix := strings.CutPrefix(addr, unixPrefix)
	if !unix {
		return lc.Listen(ctx, "tcp", addr)
	}
	if i, err := os.Lstat(path); err == nil {
		if i.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("%s is there and no socket", path)
		}
		var d net.Dialer
		if c, err := d.DialContext(ctx, "unix", path); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("another program listens on %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return lc.Listen(ctx, "unix", path)
}

// AdminAddr is the address of ln as ListenAdmin takes it.
func AdminAddr(ln net.Listener) string {
	if ln.Addr().Network() == "unix" {
		return unixPrefix + ln.Addr().String()
	}
	return ln.Addr().String()
}

// AdminClient is a client of an admin or health address, and the URL that its pages begin with.
func AdminClient(addr string) (client *http.Client, base string) {
	path, unix := strings.CutPrefix(addr, unixPrefix)
	if !unix {
		if strings.HasPrefix(addr, ":") {
			addr = "localhost" + addr
		}
		return &http.Client{Transport: &http.Transport{}}, "http://" + addr
	}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}, "http://local"
}
