package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// Files in the data folder that the tools on the server's host read.
const (
	stateFile    = "server.json"
	adminKeyFile = "admin.key"
	caFile       = "ca.crt"
)

// State is <data-dir>/server.json: where a running server listens. It holds no secret.
type State struct {
	Version string   `json:"version"`
	PID     int      `json:"pid"`
	Roles   []string `json:"roles"`
	Domain  string   `json:"domain,omitempty"`
	HubHost string   `json:"hub_host,omitempty"`
	HubURL  string   `json:"hub_url,omitempty"`
	// HubKeyHash is SHA-256 of the hub's identity key, in hex.
	HubKeyHash string `json:"hub_key_hash,omitempty"`
	EdgeID     string `json:"edge_id,omitempty"`
	// Bound addresses; empty = off.
	HTTPS string `json:"https"`
	HTTP  string `json:"http,omitempty"`
	Admin string `json:"admin,omitempty"`
	// ProxyHeader: this host's own connections must start with a PROXY header, too.
	ProxyHeader bool `json:"proxy_header,omitempty"`
}

// ReadState reads server.json. An error that is fs.ErrNotExist means that no server runs there.
func ReadState(dataDir string) (*State, error) {
	path := filepath.Join(dataDir, stateFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w; start the server again", path, err)
	}
	return s, nil
}

// AdminKeyPath is the key of the server's own host.
func AdminKeyPath(dataDir string) string { return filepath.Join(dataDir, adminKeyFile) }

// CAPath is the certificate of the internal CA.
func CAPath(dataDir string) string { return filepath.Join(dataDir, caFile) }

// DialHTTPS is HTTPS as a client on the same host dials it.
func (s *State) DialHTTPS() string { return loopback(s.HTTPS) }

// DialAdmin is Admin as a client on the same host dials it.
func (s *State) DialAdmin() string { return loopback(s.Admin) }

// loopback replaces an unspecified address.
func loopback(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil || !ap.Addr().IsUnspecified() {
		return addr
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(ap.Port()))
}

func (s *State) write(dataDir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dataDir, stateFile)
	// Readers see the whole file or none.
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func removeState(dataDir string) error {
	err := os.Remove(filepath.Join(dataDir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
