// Package postgres gives tests a PostgreSQL server of their own: a throw-away cluster from the
// programs of the machine, started once per test binary and gone with it.
package postgres

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/adit-dev/adit/test/need"
)

// startTimeout bounds making and starting the cluster.
const startTimeout = 60 * time.Second

// serve runs the server until standard input ends, which it does with the test binary, however
// that ends; then nothing of the cluster is left.
const serve = `
dir=$1; shift
"$@" >"$dir/log" 2>&1 &
server=$!
read -r _
kill -QUIT $server
wait $server
rm -rf "$dir"
`

// cluster is the server of this test binary.
type cluster struct {
	dir string
	// alive is the pipe whose end is the cluster's.
	alive *os.File
}

var (
	start = sync.OnceValues(newCluster)
	count atomic.Int64
)

// URL makes an empty database and returns its --database-url. It is dropped after the test. The
// test is skipped where the machine has no PostgreSQL.
func URL(t testing.TB) string {
	t.Helper()
	if bin() == "" {
		need.Skip(t, "needs the programs of PostgreSQL: initdb and postgres (Debian: postgresql)")
	}
	c, err := start()
	if err != nil {
		t.Fatalf("PostgreSQL for tests: %v", err)
	}
	name := fmt.Sprintf("adit_%d", count.Add(1))
	if err := c.exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return c.url(name)
}

func (c *cluster) url(database string) string {
	return "postgres://adit@/" + database + "?host=" + url.QueryEscape(c.dir)
}

func (c *cluster) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, c.url("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

// bin is the folder with the newest server programs; "" where there are none. Debian keeps them
// off the PATH.
func bin() string {
	best, newest := "", 0
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, d := range dirs {
		v, err := strconv.Atoi(filepath.Base(filepath.Dir(d)))
		if err == nil && v > newest && program(d, "initdb") && program(d, "postgres") {
			best, newest = d, v
		}
	}
	if best == "" {
		if p := need.Find("initdb"); p != "" && program(filepath.Dir(p), "postgres") {
			best = filepath.Dir(p)
		}
	}
	return best
}

func program(dir, name string) bool {
	_, err := exec.LookPath(filepath.Join(dir, name))
	return err == nil
}

func newCluster() (*cluster, error) {
	dir, err := os.MkdirTemp("", "adit-pg")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.start(ctx); err != nil {
		if c.alive == nil {
			_ = os.RemoveAll(dir)
		} else {
			_ = c.alive.Close()
		}
		return nil, err
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context) error {
	as, err := c.account()
	if err != nil {
		return err
	}
	data := filepath.Join(c.dir, "data")
	init := exec.CommandContext(ctx, filepath.Join(bin(), "initdb"), "-D", data, "-U", "adit", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
	init.Dir, init.SysProcAttr = c.dir, as
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	in, alive, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	// No command but a plain Start: nothing in this process waits for the server.
	server := exec.Command("/bin/sh", "-c", serve, "sh", c.dir, filepath.Join(bin(), "postgres"), "-D", data, "-k", c.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off",
		"-c", "max_connections=300", "-c", "shared_buffers=32MB", "-c", "max_wal_size=128MB", "-c", "autovacuum_naptime=5s")
	server.Dir, server.SysProcAttr, server.Stdin = c.dir, as, in
	if err := server.Start(); err != nil {
		_ = alive.Close()
		return err
	}
	c.alive = alive
	for {
		if err = c.exec(ctx, "SELECT 1"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			return fmt.Errorf("the server does not answer: %w: %s", err, log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// account gives the folder to the user that the server runs as: PostgreSQL refuses root.
func (c *cluster) account() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("as root the server runs as the user postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, os.Chown(c.dir, int(uid), int(gid))
}
