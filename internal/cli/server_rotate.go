package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/server"
)

// defaultOverlap is how long what pins an old key goes on to work.
const defaultOverlap = 30 * 24 * time.Hour

// rotateSteps are the values of --step.
var rotateSteps = map[string]hub.RotateStep{"add": hub.AddKey, "reseal": hub.Reseal, "drop": hub.DropKeys}

func (a *app) rotateSecretKeyCommand() *cobra.Command {
	var step string
	c := a.withStore(&cobra.Command{
		Use: "rotate-secret-key", Short: "Seal all secrets of the hub with a new secret key", Args: noArgs,
		Long: `Make a new secret key and seal everything in the database with it. It may be cut short
and run again at any time.

With SQLite the server must not run, and one call does it all. With PostgreSQL the hubs
go on, and it takes three calls:

  --step add      puts a new key into the file; then copy the file to every hub
  --step reseal   seals everything with the new key; every hub reads its file again
  --step drop     takes the old key out of the file; then copy the file to every hub`,
		Example: "  adit server rotate-secret-key --data-dir /var/lib/adit",
	}, func(cmd *cobra.Command, s *config.Store, _ []string) error {
		steps := []hub.RotateStep{hub.AddKey, hub.Reseal, hub.DropKeys}
		shared := store.IsPostgres(s.DatabaseURL)
		if one, known := rotateSteps[step]; known && shared {
			steps = []hub.RotateStep{one}
		} else if step != "" || shared {
			return usageErrorf("--step: %q is not possible here; with PostgreSQL use add, reseal and drop, one after the other, with SQLite leave it out", step)
		}
		id, err := server.RotateSecretKey(cmd.Context(), s, steps...)
		if err != nil || a.quiet {
			return err
		}
		next := map[string]string{
			"":       "keep " + s.SecretKeyFile + " with new backups: older ones hold the old key",
			"add":    "copy " + s.SecretKeyFile + " to every hub of this database, then go on with --step reseal",
			"reseal": "when every hub has logged no error for a minute, go on with --step drop",
			"drop":   "copy " + s.SecretKeyFile + " to every hub of this database",
		}[step]
		return a.print(map[string]string{"key": id, "next": next}, func() error {
			_, err := fmt.Fprintf(a.Stdout, "secrets are sealed with key %s\n%s\n", id, next)
			return err
		})
	})
	c.Flags().StringVar(&step, "step", "", "with PostgreSQL: add, reseal or drop")
	return c
}

func (a *app) rotateHubKeyCommand() *cobra.Command {
	var overlap time.Duration
	c := a.withStore(&cobra.Command{
		Use: "rotate-hub-key", Short: "Give the hub a new identity key, which tokens pin", Args: noArgs,
		Long: `Make a new identity key for the hub. Each hub uses it from its next start on. Tokens that
were made before go on to work for the overlap, because the old key vouches for the new
one; make new tokens meanwhile ("adit invite rotate", "adit agents rotate").`,
		Example: "  adit server rotate-hub-key --overlap 720h",
	}, func(cmd *cobra.Command, s *config.Store, _ []string) error {
		if overlap < 0 || overlap > 366*24*time.Hour {
			return usageErrorf("--overlap: %s is not possible; use 0 to 8784h", overlap)
		}
		hash, err := server.RotateHubKey(cmd.Context(), s, overlap)
		if err != nil || a.quiet {
			return err
		}
		return a.print(map[string]string{"hub_key_hash": hash, "old_until": time.Now().Add(overlap).UTC().Format(time.RFC3339)}, func() error {
			_, err := fmt.Fprintf(a.Stdout, "the new key is %s; start every hub again to use it\ntokens that pin the old key work until %s\n", hash, time.Now().Add(overlap).Format("2006-01-02 15:04 MST"))
			return err
		})
	})
	c.Flags().DurationVar(&overlap, "overlap", defaultOverlap, "how long tokens that pin the old key go on to work")
	return c
}

func (a *app) rotateCACommand() *cobra.Command {
	var overlap time.Duration
	c := a.withStore(&cobra.Command{
		Use: "rotate-ca", Short: "Replace the internal CA by a new one", Args: noArgs,
		Long: `Make a new internal CA, which takes over after the overlap. From the next start of the
server on <data-dir>/ca.crt holds both: have clients import it before. The old CA stays in
it until its last certificate has ended.`,
		Example: "  adit server rotate-ca --overlap 720h",
	}, func(cmd *cobra.Command, s *config.Store, _ []string) error {
		if overlap < 0 || overlap > 366*24*time.Hour {
			return usageErrorf("--overlap: %s is not possible; use 0 to 8784h", overlap)
		}
		from := time.Now().Add(overlap)
		pem, err := server.RotateCA(cmd.Context(), s, from)
		if err != nil || a.quiet {
			return err
		}
		return a.print(map[string]string{"certificate": string(pem), "takes_over": from.UTC().Format(time.RFC3339)}, func() error {
			_, err := fmt.Fprintf(a.Stdout, "the new CA takes over at %s; start every hub again, and have clients import <data-dir>/ca.crt before\n%s", from.Format("2006-01-02 15:04 MST"), pem)
			return err
		})
	})
	c.Flags().DurationVar(&overlap, "overlap", defaultOverlap, "when the new CA takes over")
	return c
}
