// Package hubv1 is the hub API.
package hubv1

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// DeclaredID is the id of a declared tunnel. It follows from kind and public address alone (a
// normalized host name, or a port or range), so that an agent knows the ids of what it declares
// while the hub is away, and declaring the same again is the same tunnel.
func DeclaredID(kind wirev1.Kind, hostname string, port, last uint32) string {
	if last <= port {
		last = 0
	}
	s := "adit tunnel v1\x00" + kind.String() + "\x00" + hostname + "\x00" +
		strconv.FormatUint(uint64(port), 10) + "-" + strconv.FormatUint(uint64(last), 10)
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:10])
}

// Key is the name of r in the change feed: the kind of item, a slash, its id.
func (r *Resource) Key() string {
	switch i := r.GetItem().(type) {
	case *Resource_Tunnel:
		return "tunnel/" + i.Tunnel.GetId()
	case *Resource_Credential:
		return "credential/" + i.Credential.GetTokenId()
	case *Resource_Edge:
		return "edge/" + i.Edge.GetAddress().GetId()
	case *Resource_Certificate:
		return "certificate/" + i.Certificate.GetName()
	case *Resource_Settings:
		return "settings/"
	case *Resource_Challenge:
		return "challenge/" + i.Challenge.GetType() + "/" + i.Challenge.GetName()
	case *Resource_Forwarder:
		return "forwarder/" + i.Forwarder.GetId()
	}
	return ""
}
