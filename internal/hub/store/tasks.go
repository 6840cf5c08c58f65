package store

import (
	"database/sql"
	"errors"
	"time"

	"github.com/uptrace/bun"
)

// taskTables are the tables of what the hub asks of agents, and what they discovered.
var taskTables = []string{
	`CREATE TABLE asks (id TEXT PRIMARY KEY, token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
		replica_id TEXT NOT NULL, ask BYTES NOT NULL, answer BYTES, taken BOOLEAN NOT NULL, deadline BIGINT NOT NULL)`,
	`CREATE INDEX asks_token ON asks (token_id)`,
	`CREATE TABLE discovered (token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE, id TEXT NOT NULL,
		spec BYTES NOT NULL, PRIMARY KEY (token_id, id))`,
	`CREATE TABLE discoveries (token_id TEXT PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE,
		replica_id TEXT NOT NULL, providers BYTES NOT NULL, reported_at BIGINT NOT NULL)`,
	`CREATE TABLE forwarders (id TEXT PRIMARY KEY, token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
		caller TEXT NOT NULL, until BIGINT NOT NULL)`,
}

// Ask is a question to an agent whose watch is at another hub of this database.
type Ask struct {
	bun.BaseModel `bun:"table:asks"`

	ID      string `bun:",pk"`
	TokenID string
	// ReplicaID is the one to ask; empty = any.
	ReplicaID string
	// Ask and Answer are protobuf.
	Ask, Answer []byte
	Taken       bool
	// Deadline in milliseconds.
	Deadline int64
}

// PutAsk stores a question.
func (t *Tx) PutAsk(a *Ask) error {
	_, err := t.tx.NewInsert().Model(a).Exec(t.ctx)
	return err
}

// OpenAsks are the questions that no hub has taken yet.
func (t *Tx) OpenAsks() ([]Ask, error) {
	var out []Ask
	err := t.tx.NewSelect().Model(&out).Where("taken = ?", false).Where("deadline > ?", t.Now.UnixMilli()).Scan(t.ctx)
	return out, err
}

// TakeAsk notes that the caller's hub passes the question on; false if another one does.
func (t *Tx) TakeAsk(id string) (bool, error) {
	r, err := t.tx.NewRaw("UPDATE asks SET taken = ? WHERE id = ? AND taken = ?", true, id, false).Exec(t.ctx)
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n == 1, err
}

// PutAnswer stores what the agent of a token said. One that nobody waits for is dropped.
func (t *Tx) PutAnswer(id, tokenID string, answer []byte) error {
	_, err := t.tx.NewRaw("UPDATE asks SET answer = ? WHERE id = ? AND token_id = ?", answer, id, tokenID).Exec(t.ctx)
	return err
}

// Answer returns the answer to a question; nil = none yet.
func (t *Tx) Answer(id string) ([]byte, error) {
	var answer []byte
	err := t.tx.NewRaw("SELECT answer FROM asks WHERE id = ?", id).Scan(t.ctx, &answer)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return answer, err
}

// DropAsk forgets a question, and those that nobody waits for any more.
func (t *Tx) DropAsk(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM asks WHERE id = ? OR deadline < ?", id, t.Now.Add(-time.Minute).UnixMilli()).Exec(t.ctx)
	return err
}
