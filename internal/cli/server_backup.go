package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/server"
)

// storeSettings are those that say where a server keeps its data; they are read from flags, the
// server's environment and its --config file.
var storeSettings = []string{"database-url", "secret-key-file"}

// withStore gives a command of the server's host its settings.
func (a *app) withStore(c *cobra.Command, run func(cmd *cobra.Command, s *config.Store, args []string) error) *cobra.Command {
	config.BindSome(c.Flags(), storeSettings...)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := a.load(cmd, config.ForServer, "")
		if err != nil {
			return err
		}
		for _, w := range v.Warnings {
			a.warn("%s", w)
		}
		s, err := v.Store()
		if err != nil {
			return usageError(err)
		}
		return run(cmd, s, args)
	}
	return c
}

func (a *app) backupCommand() *cobra.Command {
	return a.withStore(&cobra.Command{
		Use: "backup FILE", Short: "Write a backup of the hub, which may run meanwhile", Args: oneArg("FILE"),
		Long: `Write everything that the hub keeps to FILE (- is standard output): the database, the
secret key, the edge's key and the ACME account. The server may run meanwhile.

FILE can be restored on SQLite and on PostgreSQL. It holds the secret key, which opens
every secret in it: keep it as safe as the server itself.`,
		Example: "  adit server backup /backup/adit-$(date +%F).tar.gz",
	}, func(cmd *cobra.Command, s *config.Store, args []string) error {
		m, err := a.writeBackup(cmd, s, args[0])
		if err != nil || args[0] == "-" || a.quiet {
			return err
		}
		return a.print(m, func() error {
			_, err := fmt.Fprintf(a.Stdout, "%s holds the hub as it was at %s; it includes the secret key\n", args[0], m.MadeAt.Format("2006-01-02 15:04:05 MST"))
			return err
		})
	})
}

// writeBackup leaves a whole file or none.
func (a *app) writeBackup(cmd *cobra.Command, s *config.Store, path string) (*server.Manifest, error) {
	if path == "-" {
		return server.Backup(cmd.Context(), s, a.Stdout)
	}
	if _, err := os.Stat(path); err == nil {
		return nil, usageErrorf("%s exists; choose another name, or delete it first", path)
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	m, err := server.Backup(cmd.Context(), s, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return nil, err
	}
	return m, nil
}

func (a *app) restoreCommand() *cobra.Command {
	return a.withStore(&cobra.Command{
		Use: "restore FILE", Short: "Restore a backup into an empty database and data folder", Args: oneArg("FILE"),
		Long: `Restore what "adit server backup" wrote to FILE (- is standard input), into an empty
database and a data folder without keys. The server must not run. Agents and edges
come back with the tokens they have.`,
		Example: "  adit server restore /backup/adit-2026-11-30.tar.gz --data-dir /var/lib/adit",
	}, func(cmd *cobra.Command, s *config.Store, args []string) error {
		in := io.NopCloser(a.Stdin)
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return usageErrorf("%w", err)
			}
			if err != nil {
				return err
			}
			in = f
		}
		defer func() { _ = in.Close() }()
		m, err := server.Restore(cmd.Context(), s, in)
		if err != nil || a.quiet {
			return err
		}
		return a.print(m, func() error {
			_, err := fmt.Fprintf(a.Stdout, "the hub is as it was at %s; start the server with the settings it had\n", m.MadeAt.Format("2006-01-02 15:04:05 MST"))
			return err
		})
	})
}
