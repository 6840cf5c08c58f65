package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// state is <state-dir>/edges.json: the edges known last, for a start without the hub.
type state struct {
	TokenID string            `json:"token_id"`
	Edges   []json.RawMessage `json:"edges"`
}

func (a *Agent) statePath() string { return filepath.Join(a.cfg.StateDir, "edges.json") }

// saveEdges writes the list if a state folder is set. A failure costs only the next start
// without the hub, so it is a warning.
func (a *Agent) saveEdges(tokenID string, edges []*wirev1.EdgeAddress) {
	if a.cfg.StateDir == "" {
		return
	}
	s := state{TokenID: tokenID}
	for _, e := range edges {
		b, err := protojson.Marshal(e)
		if err != nil {
			continue
		}
		s.Edges = append(s.Edges, b)
	}
	if err := writeState(a.statePath(), s); err != nil {
		a.log.Warn("the edge list was not saved", "state_dir", a.cfg.StateDir, "error", err)
	}
}

func writeState(path string, s any) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// loadEdges returns the saved list of this token; none if there is no (valid) one.
func (a *Agent) loadEdges(tokenID string) []*wirev1.EdgeAddress {
	if a.cfg.StateDir == "" {
		return nil
	}
	edges, err := readState(a.statePath(), tokenID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Warn("the saved edge list is not used", "file", a.statePath(), "error", err)
	}
	return edges
}

func readState(path, tokenID string) ([]*wirev1.EdgeAddress, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	if s.TokenID != tokenID {
		return nil, nil
	}
	var edges []*wirev1.EdgeAddress
	for i, raw := range s.Edges {
		e := &wirev1.EdgeAddress{}
		if err := protojson.Unmarshal(raw, e); err != nil {
			return nil, fmt.Errorf("edge %d: %w", i, err)
		}
		edges = append(edges, e)
	}
	return edges, nil
}
