package hubv1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// DeclaredTunnelID is the id of a declared tunnel. It follows from what has exactly one owner (the
// host name, or the first public port), so an agent that starts while the hub is away names the
// tunnels that the edges' snapshots hold.
func DeclaredTunnelID(kind wirev1.Kind, hostname string, port uint32) string {
	var what string
	switch kind {
	case wirev1.Kind_KIND_TCP:
		what = fmt.Sprintf("tcp/%d", port)
	case wirev1.Kind_KIND_UDP:
		what = fmt.Sprintf("udp/%d", port)
	default:
		what = "host/" + hostname
	}
	sum := sha256.Sum256([]byte("adit declared tunnel v1\x00" + what))
	return hex.EncodeToString(sum[:16])
}
