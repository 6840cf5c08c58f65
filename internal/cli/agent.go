package cli

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/agent"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/telemetry"
)

func (a *app) agentCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "agent", Short: "Run an agent beside the services it exposes", Args: noArgs,
		Example: `  adit agent --token-file token --services '[{"hostname": "app.example.com", "origin": "http://127.0.0.1:3000", "tls_mode": "terminate", "access": "public"}]'
  adit agent --token-file token --tcp-services '[{"name": "ssh", "origin": "127.0.0.1:22", "listen_port": 2222}]'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := a.load(cmd, config.ForAgent, "")
			if err != nil {
				return err
			}
			settings, err := v.Agent()
			if err != nil {
				return usageError(err)
			}
			return a.runAgent(cmd.Context(), settings, v.Warnings)
		},
	}
	config.Bind(c.Flags(), config.ForAgent)
	return c
}

// agentConfig is what the settings say in the agent's own words.
func agentConfig(s *config.Agent) agent.Config {
	return agent.Config{
		Token: s.Token, TokenFile: s.TokenFile, ServerURL: s.ServerURL, Services: s.Lists, ConfigFile: s.ConfigFile,
		HealthAddr: s.HealthAddr, HealthFallback: s.HealthDefault, PProf: s.PProf, StateDir: s.StateDir, Carriers: s.Carriers, MaxLanes: s.MaxLanes,
		Origin:       origin.Config{Allow: s.AllowTarget, Deny: s.DenyTarget, AllowForward: s.AllowForward, Timeout: s.OriginDialTimeout, KeepAlive: s.OriginKeepAlive},
		OriginCAFile: s.OriginCAFile, GracePeriod: s.GracePeriod, FailFast: s.FailFast, Software: telemetry.Version(),
	}
}

// checkToken tells a bad token before anything is dialled, with the exit code of credentials.
func checkToken(token, file string) (*identity.Token, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, failWith(exitCredential, "unauthenticated", "", "token file: %w", err)
		}
		token = strings.TrimSpace(string(b))
	}
	t, err := identity.ParseToken(token)
	if err != nil {
		return nil, failWith(exitCredential, "unauthenticated", "", "%w", err)
	}
	if t.Kind != identity.KindInvite && t.Kind != identity.KindAgent {
		return nil, failWith(exitCredential, "token_wrong_kind", "create one with `adit invite create`", "the token is of kind %q; an agent needs an invite or enrolment token", t.Kind)
	}
	return t, nil
}

func (a *app) runAgent(parent context.Context, s *config.Agent, warnings []string) error {
	if _, err := checkToken(s.Token, s.TokenFile); err != nil {
		return err
	}
	ctx, forced, stop := lifetime(parent)
	defer stop()
	cfg := agentConfig(s)
	cfg.Registry = telemetry.NewRegistry()
	log := telemetry.NewLog(telemetry.LogConfig{Level: s.LogLevel, Format: s.LogFormat, Output: a.Stderr, Registry: cfg.Registry})
	defer log.Close()
	for _, w := range warnings {
		log.Warn(w)
	}
	if err := around(&cfg, s, log.Logger); err != nil {
		return usageError(err)
	}
	disableGSO(s.DisableUDPGSO)
	go giveBackMemory(ctx)
	cfg.Log, cfg.Origin.Log = log.Logger, log.Logger
	return runToEnd(ctx, forced, cfg)
}

// runToEnd runs an agent until ctx ends and it has drained; forced cuts the drain short.
func runToEnd(ctx context.Context, forced <-chan struct{}, cfg agent.Config) error {
	g, err := agent.New(cfg)
	if err != nil {
		return usageError(err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-forced:
			g.Force()
		case <-done:
		}
	}()
	return g.Run(ctx)
}

// validateAgent checks everything that needs no network: settings, token and service lists.
func validateAgent(v *config.Values) error {
	s, err := v.Agent()
	if err != nil {
		return err
	}
	if _, err := checkToken(s.Token, s.TokenFile); err != nil {
		return err
	}
	cfg := agentConfig(s)
	if err := around(&cfg, s, nil); err != nil {
		return err
	}
	_, err = agent.New(cfg)
	return err
}
