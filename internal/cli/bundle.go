package cli

import (
	"archive/zip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"time"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/server"
	"github.com/adit-dev/adit/internal/telemetry"
)

// bundleFile is one file of a bundle.
type bundleFile struct {
	name string
	text []byte
}

// tokens are hidden wherever they turn up: the rest of a bundle has no place for secrets.
var tokens = regexp.MustCompile(`adit_(invite|agent|edge|key)_[A-Za-z0-9_-]+`)

// writeBundle writes what someone who helps needs to know about this machine as a zip file:
// the checks, the settings with secrets hidden, and state and metrics of what runs here.
func (a *app) writeBundle(ctx context.Context, path string, checks []server.Check, st *server.State) error {
	files := []bundleFile{
		{"version.json", asJSON(map[string]any{"version": telemetry.Version(), "go": runtime.Version(),
			"os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(), "time": time.Now().UTC()})},
		{"checks.json", asJSON(checks)},
	}
	admin := map[string]string{}
	for _, p := range []config.Program{config.ForServer, config.ForAgent} {
		v, err := config.Load(config.Sources{Program: p, Environ: a.Environ})
		if err != nil {
			files = append(files, bundleFile{"settings-" + p.String() + ".txt", []byte(err.Error() + "\n")})
			continue
		}
		files = append(files, bundleFile{"settings-" + p.String() + ".json", asJSON(v.Lines())})
		if s, err := v.Agent(); p == config.ForAgent && err == nil {
			admin["agent"] = s.HealthAddr
		}
	}
	if st != nil {
		files = append(files, bundleFile{"server.json", asJSON(st)})
		admin["server"] = st.Admin
	}
	for who, addr := range admin {
		for _, page := range []string{"readyz", "metrics"} {
			if text := adminPage(ctx, addr, page); text != nil {
				files = append(files, bundleFile{who + "-" + page + ".txt", text})
			}
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--bundle: %w; name a file that does not exist yet", err)
	}
	if err := zipFiles(f, files); err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return fmt.Errorf("--bundle: %w", err)
	}
	return f.Close()
}

func zipFiles(to io.Writer, files []bundleFile) error {
	z := zip.NewWriter(to)
	for _, file := range files {
		w, err := z.CreateHeader(&zip.FileHeader{Name: file.name, Method: zip.Deflate, Modified: time.Now()})
		if err != nil {
			return err
		}
		if _, err := w.Write(tokens.ReplaceAll(file.text, []byte("adit_${1}_(hidden)"))); err != nil {
			return err
		}
	}
	return z.Close()
}

func asJSON(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return []byte(err.Error())
	}
	return append(b, '\n')
}

// adminPage reads a page of a local admin or health address; nil if there is none.
func adminPage(ctx context.Context, addr, page string) []byte {
	if addr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, base := telemetry.AdminClient(addr)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/"+page, nil)
	if err != nil {
		return nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return nil
	}
	return b
}
