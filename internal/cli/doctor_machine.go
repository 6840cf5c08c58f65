package cli

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/adit-dev/adit/internal/server"
)

// wantedBuffer is what a QUIC socket asks for.
const wantedBuffer = 7 << 20

// machineChecks look at this machine alone.
func machineChecks() []server.Check {
	if runtime.GOOS != "linux" {
		return nil
	}
	return append(socketBuffers(readKernel), congestionControl(readKernel))
}

// socketBuffers checks the most that a UDP socket may buffer.
func socketBuffers(read func(string) string) []server.Check {
	var out []server.Check
	for _, key := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		c := server.Check{Name: "socket buffers " + key, Status: server.StatusOK}
		n, err := strconv.Atoi(read(strings.ReplaceAll(key, ".", "/")))
		switch {
		case err != nil:
			c.Status, c.Detail, c.Remedy = server.StatusWarn, "cannot be read here", "in a container the host decides it"
		case n < wantedBuffer:
			c.Status = server.StatusWarn
			c.Detail = fmt.Sprintf("%d bytes; QUIC wants %d for fast links", n, wantedBuffer)
			c.Remedy = fmt.Sprintf("sysctl -w %s=%d, and the same line in /etc/sysctl.d/90-adit.conf", key, wantedBuffer)
		default:
			c.Detail = fmt.Sprintf("%d bytes", n)
		}
		out = append(out, c)
	}
	return out
}

// congestionControl checks whether lanes may use BBR.
func congestionControl(read func(string) string) server.Check {
	c := server.Check{Name: "congestion control", Status: server.StatusOK}
	now := read("net/ipv4/tcp_congestion_control")
	allowed := strings.Fields(read("net/ipv4/tcp_allowed_congestion_control"))
	switch {
	case now == "" && len(allowed) == 0:
		c.Status, c.Detail, c.Remedy = server.StatusWarn, "cannot be read here", "in a container the host decides it"
	case now == "bbr" || slices.Contains(allowed, "bbr"):
		c.Detail = "bbr is there"
	default:
		c.Status, c.Detail = server.StatusWarn, now+"; bbr is much faster where packets get lost"
		c.Remedy = "modprobe tcp_bbr, and sysctl -w net.ipv4.tcp_congestion_control=bbr"
	}
	return c
}

// tokenFlags are the flags that decide the token, and nothing else.
func tokenFlags(cmd *cobra.Command) *pflag.FlagSet {
	fs := pflag.NewFlagSet("token", pflag.ContinueOnError)
	fs.AddFlag(cmd.Flags().Lookup("token"))
	fs.AddFlag(cmd.Flags().Lookup("token-file"))
	return fs
}
