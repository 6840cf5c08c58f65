package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// migrationLock is the key of PostgreSQL's advisory lock during a migration: "adit".
const migrationLock = 0x61646974

// migration is one step of the schema. BYTES stands for the dialect's type.
type migration struct {
	version int
	sql     []string
}

// Steps are only ever added. All that are missing run in one transaction together with the note
// that they did, so a crash leaves the old schema or the new one.
var migrations = []migration{
	{1, firstTables}, {2, clearTables}, {3, sharedTables}, {4, accountTables}, {5, managedTables}, {6, taskTables}, {7, recordTables},
}

var firstTables = []string{
	`CREATE TABLE meta (name TEXT PRIMARY KEY, value BYTES NOT NULL)`,
	`CREATE TABLE secrets (name TEXT PRIMARY KEY, sealed BYTES NOT NULL)`,
	// The revision of a new store starts at the time it was made, so that no edge mistakes it for
	// the store it knew before.
	`CREATE TABLE feed (id INTEGER PRIMARY KEY CHECK (id = 1), revision BIGINT NOT NULL)`,
	`CREATE TABLE changes (revision BIGINT PRIMARY KEY, item TEXT NOT NULL, deleted BOOLEAN NOT NULL, at BIGINT NOT NULL)`,
	`CREATE TABLE tenants (name TEXT PRIMARY KEY, created_at BIGINT NOT NULL)`,
	`CREATE TABLE tokens (id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL,
		tenant TEXT NOT NULL REFERENCES tenants (name), ed25519 BYTES NOT NULL, mldsa65 BYTES NOT NULL,
		created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, expires_sessions BOOLEAN NOT NULL,
		max_replicas INTEGER NOT NULL, max_edges INTEGER NOT NULL, sources TEXT NOT NULL, revoked_at BIGINT NOT NULL)`,
	`CREATE UNIQUE INDEX tokens_live_name ON tokens (kind, name) WHERE revoked_at = 0`,
	`CREATE INDEX tokens_tenant ON tokens (tenant)`,
	`CREATE TABLE grants (token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE, position INTEGER NOT NULL,
		protocol TEXT NOT NULL, pattern TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
		PRIMARY KEY (token_id, position))`,
	`CREATE TABLE tunnels (id TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants (name), kind INTEGER NOT NULL,
		hostname TEXT UNIQUE, name TEXT NOT NULL, source TEXT NOT NULL, spec BYTES NOT NULL, created_at BIGINT NOT NULL,
		orphaned_at BIGINT NOT NULL, orphan_mark BIGINT NOT NULL)`,
	`CREATE TABLE ports (protocol TEXT NOT NULL, port INTEGER NOT NULL,
		tunnel_id TEXT NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE, PRIMARY KEY (protocol, port))`,
	`CREATE INDEX ports_tunnel ON ports (tunnel_id)`,
	`CREATE TABLE reservations (protocol TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
		tenant TEXT NOT NULL REFERENCES tenants (name), created_at BIGINT NOT NULL, PRIMARY KEY (protocol, first))`,
	`CREATE TABLE replicas (token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE, replica_id TEXT NOT NULL,
		host_name TEXT NOT NULL, software TEXT NOT NULL, declared_at BIGINT NOT NULL, lost_mark BIGINT,
		PRIMARY KEY (token_id, replica_id))`,
	`CREATE TABLE declarations (token_id TEXT NOT NULL, replica_id TEXT NOT NULL, position INTEGER NOT NULL,
		entry BYTES NOT NULL, verdict BYTES NOT NULL, tunnel_id TEXT NOT NULL,
		PRIMARY KEY (token_id, replica_id, position),
		FOREIGN KEY (token_id, replica_id) REFERENCES replicas (token_id, replica_id) ON DELETE CASCADE)`,
	`CREATE INDEX declarations_tunnel ON declarations (tunnel_id)`,
	`CREATE TABLE edges (id TEXT PRIMARY KEY, token_id TEXT NOT NULL, key BYTES NOT NULL, spec BYTES NOT NULL,
		software TEXT NOT NULL, last_seen BIGINT NOT NULL)`,
	`CREATE TABLE released_names (name TEXT PRIMARY KEY, tenant TEXT NOT NULL, until BIGINT NOT NULL)`,
	`CREATE TABLE certificates (name TEXT PRIMARY KEY, chain BYTES NOT NULL, sealed_key BYTES NOT NULL,
		not_after BIGINT NOT NULL, problem TEXT NOT NULL)`,
}

var clearTables = []string{
	`CREATE TABLE http_ports (port INTEGER NOT NULL, tunnel_id TEXT NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
		PRIMARY KEY (port, tunnel_id))`,
	`CREATE INDEX http_ports_tunnel ON http_ports (tunnel_id)`,
}

func (s *Store) migrate(ctx context.Context, steps []migration) error {
	return s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := s.migrateIn(ctx, tx, steps)
		return err
	})
}

// migrateIn runs the steps that are missing in a transaction. Have is the version before.
func (s *Store) migrateIn(ctx context.Context, tx bun.Tx, steps []migration) (have int, err error) {
	newest := steps[len(steps)-1].version
	if tx.Dialect().Name() == dialect.PG {
		// Hubs that start together: one migrates, the others find it done.
		if _, err := tx.NewRaw("SELECT pg_advisory_xact_lock(?)", migrationLock).Exec(ctx); err != nil {
			return 0, err
		}
	}
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)`); err != nil {
		return 0, err
	}
	if err := tx.NewRaw("SELECT coalesce(max(version), 0) FROM schema_version").Scan(ctx, &have); err != nil {
		return 0, err
	}
	if have > newest {
		return have, fmt.Errorf("its schema version %d is newer than the %d that this build knows; run a newer adit, or restore a backup", have, newest)
	}
	now := s.now().UnixMilli()
	for _, m := range steps {
		if m.version <= have {
			continue
		}
		for _, q := range m.sql {
			if _, err := tx.ExecContext(ctx, portable(q, tx.Dialect().Name())); err != nil {
				return have, fmt.Errorf("schema version %d: %w", m.version, err)
			}
		}
		if _, err := tx.NewRaw("INSERT INTO schema_version (version, applied_at) VALUES (?, ?)", m.version, now).Exec(ctx); err != nil {
			return have, err
		}
	}
	if have > 0 {
		return have, nil
	}
	if _, err := tx.NewRaw("INSERT INTO feed (id, revision) VALUES (1, ?)", now*1000).Exec(ctx); err != nil {
		return have, err
	}
	_, err = tx.NewRaw("INSERT INTO tenants (name, created_at) VALUES (?, ?)", DefaultTenant, now).Exec(ctx)
	return have, err
}
