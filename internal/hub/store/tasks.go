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

// Forwarder is a caller who opened forwards to an agent lately.
type Forwarder struct {
	bun.BaseModel `bun:"table:forwarders"`

	ID      string `bun:",pk"`
	TokenID string
	// Caller is the credential: "key/ID", "signin/ID" or "local/NAME".
	Caller string
	// Until is when it ends, in milliseconds, unless another ticket is made.
	Until int64
}

// PutForwarder stores f in place of what had its id.
func (t *Tx) PutForwarder(f *Forwarder) error {
	if _, err := t.tx.NewRaw("DELETE FROM forwarders WHERE id = ?", f.ID).Exec(t.ctx); err != nil {
		return err
	}
	_, err := t.tx.NewInsert().Model(f).Exec(t.ctx)
	return err
}

// Forwarder returns one by id.
func (t *Tx) Forwarder(id string) (*Forwarder, error) {
	f := &Forwarder{}
	err := t.tx.NewSelect().Model(f).Where("id = ?", id).Scan(t.ctx)
	return f, wrap(err)
}

// Forwarders returns all.
func (t *Tx) Forwarders() ([]*Forwarder, error) {
	var out []*Forwarder
	err := t.tx.NewSelect().Model(&out).Order("id").Scan(t.ctx)
	return out, err
}

// DeleteForwarder removes one.
func (t *Tx) DeleteForwarder(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM forwarders WHERE id = ?", id).Exec(t.ctx)
	return err
}

// KeyUser is the user of an API key that is there and has not expired; nil = there is none.
func (t *Tx) KeyUser(id string) (*User, error) {
	u, err := t.user("id = (SELECT user_id FROM api_keys WHERE id = ? AND (expires_at = 0 OR expires_at > ?))", id, t.Now.UnixMilli())
	if err != nil {
		return nil, absent(err)
	}
	return u, nil
}

// SignInUser is the user of a sign-in that is there and has not expired; nil = there is none.
func (t *Tx) SignInUser(id string) (*User, error) {
	u, err := t.user("id = (SELECT user_id FROM sign_ins WHERE id = ? AND expires_at > ?)", id, t.Now.UnixMilli())
	if err != nil {
		return nil, absent(err)
	}
	return u, nil
}

// absent makes a row that is not there no error.
func absent(err error) error {
	if errors.Is(wrap(err), ErrNotFound) {
		return nil
	}
	return err
}

// DiscoveredService is something that an agent found.
type DiscoveredService struct {
	bun.BaseModel `bun:"table:discovered"`

	TokenID string `bun:",pk"`
	ID      string `bun:",pk"`
	Spec    []byte
}

// Discovery is the state of an agent's reports of what it found.
type Discovery struct {
	bun.BaseModel `bun:"table:discoveries"`

	TokenID   string `bun:",pk"`
	ReplicaID string
	// Providers is a protobuf DiscoveryReport without services.
	Providers []byte
	// ReportedAt in milliseconds.
	ReportedAt int64
}

// Discover takes a report: with all set, nothing of an earlier one stays.
func (t *Tx) Discover(d *Discovery, all bool, puts []DiscoveredService, deletes []string) error {
	if all {
		if _, err := t.tx.NewRaw("DELETE FROM discovered WHERE token_id = ?", d.TokenID).Exec(t.ctx); err != nil {
			return err
		}
	} else {
		for _, p := range puts {
			deletes = append(deletes, p.ID)
		}
		for len(deletes) > 0 {
			n := min(len(deletes), 500)
			if _, err := t.tx.NewRaw("DELETE FROM discovered WHERE token_id = ? AND id IN (?)", d.TokenID, bun.List(deletes[:n])).Exec(t.ctx); err != nil {
				return err
			}
			deletes = deletes[n:]
		}
	}
	if err := batch(t, puts); err != nil {
		return err
	}
	if _, err := t.tx.NewRaw("DELETE FROM discoveries WHERE token_id = ?", d.TokenID).Exec(t.ctx); err != nil {
		return err
	}
	_, err := t.tx.NewInsert().Model(d).Exec(t.ctx)
	return err
}

// Discovery is what an agent reported last of its providers.
func (t *Tx) Discovery(tokenID string) (*Discovery, error) {
	d := &Discovery{}
	err := t.tx.NewSelect().Model(d).Where("token_id = ?", tokenID).Scan(t.ctx)
	return d, wrap(err)
}

// Discovered are the services that an agent found, by id.
func (t *Tx) Discovered(tokenID string) ([]DiscoveredService, error) {
	var out []DiscoveredService
	err := t.tx.NewSelect().Model(&out).Where("token_id = ?", tokenID).Order("id").Scan(t.ctx)
	return out, err
}

// DiscoveredCount is how many services of an agent are stored.
func (t *Tx) DiscoveredCount(tokenID string) (n int, err error) {
	err = t.tx.NewRaw("SELECT count(*) FROM discovered WHERE token_id = ?", tokenID).Scan(t.ctx, &n)
	return n, err
}
