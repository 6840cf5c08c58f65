package edge

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

const (
	snapshotMagic = "adit edge snapshot v1\n"
	// writeAfter is how long changes may gather before they are written.
	writeAfter = time.Second
	// refreshAfter keeps the time at which the hub was last heard on disk.
	refreshAfter = time.Minute
)

// snapshotFile is the sealed copy of the feed on disk, with which an edge starts while the hub is
// away: magic, nonce, sealed {Unix time heard, snapshot as one watch message}.
type snapshotFile struct {
	path  string
	key   []byte
	edge  string // bound to the content: another edge's file does not open
	dirty atomic.Bool
}

func (s *snapshotFile) touch() { s.dirty.Store(true) }

func (s *snapshotFile) aead() (interface {
	Seal(dst, nonce, plaintext, additionalData []byte) []byte
	Open(dst, nonce, ciphertext, additionalData []byte) ([]byte, error)
}, error) {
	key, err := hkdf.Key(sha256.New, s.key, nil, "adit edge snapshot v1", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	return chacha20poly1305.NewX(key)
}

// write replaces the file in one step.
func (s *snapshotFile) write(heard time.Time, m *hubv1.WatchResponse) error {
	plain := binary.BigEndian.AppendUint64(nil, uint64(heard.Unix()))
	plain, err := proto.MarshalOptions{}.MarshalAppend(plain, m)
	if err != nil {
		return err
	}
	a, err := s.aead()
	if err != nil {
		return err
	}
	out := append([]byte(snapshotMagic), make([]byte, chacha20poly1305.NonceSizeX)...)
	nonce := out[len(snapshotMagic):]
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	out = a.Seal(out, nonce, plain, []byte(snapshotMagic+s.edge))
	return replaceFile(s.path, out)
}

func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data) // the file is 0600 from the start
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (s *snapshotFile) read() (heard time.Time, m *hubv1.WatchResponse, err error) {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return heard, nil, err
	}
	head := len(snapshotMagic) + chacha20poly1305.NonceSizeX
	if len(data) < head || string(data[:len(snapshotMagic)]) != snapshotMagic {
		return heard, nil, errors.New("not a snapshot of this version")
	}
	a, err := s.aead()
	if err != nil {
		return heard, nil, err
	}
	plain, err := a.Open(nil, data[len(snapshotMagic):head], data[head:], []byte(snapshotMagic+s.edge))
	if err != nil {
		return heard, nil, errors.New("does not open with this secret key and edge key, or was changed")
	}
	if len(plain) < 8 {
		return heard, nil, errors.New("is cut short")
	}
	m = &hubv1.WatchResponse{}
	if err := proto.Unmarshal(plain[8:], m); err != nil {
		return heard, nil, fmt.Errorf("does not parse: %w", err)
	}
	return time.Unix(int64(binary.BigEndian.Uint64(plain)), 0), m, nil
}

// loadSnapshot starts with what is on disk, if anything is. A file that does not open is no
// reason not to start: the hub will tell.
func (e *Edge) loadSnapshot() {
	if e.snapshot.path == "" {
		return
	}
	heard, m, err := e.snapshot.read()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		e.cfg.Log.Warn("the snapshot on disk is not used; the edge serves when the hub is heard", "file", e.snapshot.path, "err", err)
		return
	}
	e.feed.mu.Lock()
	e.commit(m.GetRevision(), m.GetPuts(), nil)
	e.feed.mu.Unlock()
	e.feed.heard.Store(heard.UnixNano())
	e.snapshot.dirty.Store(false)
	e.cfg.Log.Info("started with the snapshot on disk", "revision", m.GetRevision(), "hub_heard", heard)
}

// keepSnapshot writes changes to disk until ctx ends, and once more then.
func (e *Edge) keepSnapshot(ctx context.Context) {
	if e.snapshot.path == "" {
		return
	}
	last, pause := e.cfg.Now(), writeAfter
	for sleep(ctx, pause) {
		pause = writeAfter
		stale := e.Connected() && e.cfg.Now().Sub(last) > refreshAfter
		if stale || e.snapshot.dirty.Load() {
			last = e.cfg.Now()
			e.saveSnapshot()
			// However large it is and however often it changes, writing it stays a small part of
			// the work.
			pause += 20 * e.cfg.Now().Sub(last)
		}
	}
	if e.snapshot.dirty.Load() {
		e.saveSnapshot()
	}
}

func (e *Edge) saveSnapshot() {
	e.snapshot.dirty.Store(false)
	heard := time.Unix(0, e.feed.heard.Load())
	if e.Connected() {
		heard = e.cfg.Now()
	}
	e.feed.mu.Lock()
	m := &hubv1.WatchResponse{Revision: e.view.Load().revision, Snapshot: true, Complete: true}
	for _, k := range sortedKeys(e.feed.book.items) {
		m.Puts = append(m.Puts, e.feed.book.items[k])
	}
	complete := e.view.Load().complete
	e.feed.mu.Unlock()
	if !complete {
		return
	}
	if err := e.snapshot.write(heard, m); err != nil {
		e.snapshot.dirty.Store(true)
		e.cfg.Log.Error("the snapshot was not written; a restart without the hub would begin with an older one", "file", e.snapshot.path, "err", err)
	}
}
