package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/adit-dev/adit/internal/hub"
)

// OfferSetUp makes a set-up link while the hub has no owner: on a terminal it is shown there, else
// it goes into a file that only this user can read. A link that waits already is left alone. It
// does nothing without the hub role.
func (s *Server) OfferSetUp(ctx context.Context, terminal io.Writer) error {
	if s.hub == nil {
		return nil
	}
	needed, open, err := s.hub.SetUpOpen(ctx)
	if err != nil || !needed {
		return err
	}
	file := filepath.Join(s.cfg.DataDir, hub.SetupFile)
	if _, err := os.Stat(file); err == nil && open && terminal == nil {
		s.log.Info("this hub has no owner yet; the link to set it up waits in a file", "file", file)
		return nil
	}
	url, until, err := s.hub.SetUpLink(ctx)
	if err != nil {
		return err
	}
	if terminal != nil {
		fmt.Fprintf(terminal, "\nThis hub has no owner yet. Make the account with this link, which works once and until %s:\n\n  %s\n\n", until.Format("2006-01-02 15:04"), url)
		return nil
	}
	if file, err = s.hub.WriteSetupFile(url); err != nil {
		return err
	}
	s.log.Info("this hub has no owner yet; the link to set it up is in a file", "file", file, "until", until)
	return nil
}
