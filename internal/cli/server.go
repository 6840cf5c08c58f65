package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/server"
	"github.com/adit-dev/adit/internal/telemetry"
)

func (a *app) serverCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "server", Short: "Run a server: hub, edge, or both", Args: noArgs,
		Long: `Run a server: the hub (accounts, tunnels, certificates, API) and an edge (public
listeners), or one of them. With --roles edge and a token of "adit edge invite" it
joins an existing hub as a further edge.`,
		Example: "  adit server --domain example.com --acme-email admin@example.com",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := a.load(cmd, config.ForServer, "")
			if err != nil {
				return err
			}
			settings, err := v.Server()
			if err != nil {
				return usageError(err)
			}
			return a.runServer(cmd.Context(), settings, v.Warnings)
		},
	}
	config.Bind(c.Flags(), config.ForServer)
	c.AddCommand(a.setupLinkCommand(), a.backupCommand(), a.restoreCommand(), a.rotateSecretKeyCommand(), a.rotateHubKeyCommand(), a.rotateCACommand())
	return c
}

func (a *app) runServer(parent context.Context, settings *config.Server, warnings []string) error {
	ctx, forced, stop := lifetime(parent)
	defer stop()
	reg := telemetry.NewRegistry()
	log := telemetry.NewLog(telemetry.LogConfig{Level: settings.LogLevel, Format: settings.LogFormat, Output: a.Stderr, Registry: reg})
	defer log.Close()
	for _, w := range warnings {
		log.Warn(w)
	}
	disableGSO(settings.DisableUDPGSO)
	go giveBackMemory(ctx)
	s, err := server.Start(ctx, server.Config{Settings: settings, Log: log.Logger, Registry: reg})
	if err != nil {
		return startFailure(err)
	}
	st := s.State()
	log.Info("server is up", "version", st.Version, "roles", st.Roles, "https", st.HTTPS, "http", st.HTTP, "admin", st.Admin, "hub", st.HubURL, "data", settings.DataDir)
	if fp := s.CAFingerprint(); fp != "" {
		log.Info("certificates come from the internal CA", "file", server.CAPath(settings.DataDir), "sha256", fp)
	}
	var terminal io.Writer
	if telemetry.IsTerminal(a.Stderr) {
		terminal = a.Stderr
	}
	if err := s.OfferSetUp(ctx, terminal); err != nil {
		log.Error("no set-up link could be made; try `adit server setup-link`", "error", err)
	}
	checks := make(chan struct{})
	go func() {
		defer close(checks)
		sayMissing(ctx, s, log.Logger)
	}()
	select {
	case <-ctx.Done():
		log.Info("draining", "timeout", settings.DrainTimeout.String())
	case <-s.Done():
	}
	stopCtx, cancel := untilForced(forced)
	defer cancel()
	err = s.Stop(stopCtx)
	<-checks
	log.Info("server has stopped")
	return err
}

// disableGSO must come before the first QUIC socket.
func disableGSO(off bool) {
	if off {
		_ = os.Setenv("QUIC_GO_DISABLE_GSO", "true")
	}
}

// sayMissing logs what a server on the internet still lacks.
func sayMissing(ctx context.Context, s *server.Server, log *slog.Logger) {
	for _, c := range s.Missing(ctx) {
		if c.Status != server.StatusOK && ctx.Err() == nil {
			log.Warn("still missing: "+c.Name, "problem", c.Detail, "remedy", c.Remedy)
		}
	}
}

// startFailure gives a failed start its code; none of them is a usage error.
func startFailure(err error) error {
	var b *server.BindError
	if errors.As(err, &b) {
		return &failure{Text: b.Error(), Code: string(reason.PortUnavailable), Exit: exitFailed, err: err}
	}
	return err
}
