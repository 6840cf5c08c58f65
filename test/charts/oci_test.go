package charts_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/charts"
	"github.com/adit-dev/adit/test/need"
)

// chartLayer is the media type of a chart in a registry.
const chartLayer = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

// registry is one on loopback that ends with the test; its address.
func registry(t *testing.T) string {
	t.Helper()
	path, err := charts.Tool("registry")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-port", "0")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if _, port, ok := strings.Cut(lines.Text(), "serving on port "); ok {
			go func() {
				for lines.Scan() { // until it ends
				}
			}()
			return "localhost:" + port
		}
	}
	t.Fatal("the registry does not start")
	return ""
}

// release packages the charts with a made-up digest.
func release(t *testing.T, dir string, env ...string) (string, error) {
	t.Helper()
	program, err := charts.Tool("helm")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(need.Root(), "deploy", "charts"))
	cmd.Env = append(os.Environ(), append([]string{"HELM=" + program, "OUT=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_CACHE_HOME=" + dir}, env...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// digest is that of no image.
var digest = "sha256:" + strings.Repeat("c3", 32)

// pushed is a registry that has the charts as version 1.2.3.
func pushed(t *testing.T) (addr string) {
	t.Helper()
	addr = registry(t)
	if out, err := release(t, t.TempDir(), "VERSION=v1.2.3", "DIGEST="+digest, "IMAGE=registry.example.com/team/adit", "REGISTRY="+addr, "PLAIN_HTTP=1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return addr
}

func TestRegistry(t *testing.T) {
	addr := pushed(t)
	t.Run("TOW-3 a release is in the registry, with its schema, and pins its image by digest", func(t *testing.T) {
		for _, chart := range all {
			ref := "oci://" + addr + "/charts/" + chart
			got, err := run(t, least[chart], "helm", "template", "r", ref, "--version", "1.2.3", "--plain-http", "--namespace", "ns", "--values", "-")
			if err != nil {
				t.Fatal(err)
			}
			if image := podSpec(t, parse(t, got)).Containers[0].Image; image != "registry.example.com/team/adit:v1.2.3@"+digest {
				t.Errorf("%s has the image %s", chart, image)
			}
			if _, err := run(t, least[chart]+"unknown: true\n", "helm", "template", "r", ref, "--version", "1.2.3", "--plain-http", "--values", "-"); err == nil || !strings.Contains(err.Error(), "not allowed") {
				t.Errorf("%s from the registry has no schema: %v", chart, err)
			}
			to := t.TempDir()
			if _, err := helm(t, "pull", ref, "--version", "1.2.3", "--plain-http", "--destination", to); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(to, chart+"-1.2.3.tgz")); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("TOW-4 its layer is of the type that Flux asks for", func(t *testing.T) {
		client := http.Client{Timeout: 10 * time.Second}
		for _, chart := range all {
			r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/v2/charts/"+chart+"/manifests/1.2.3", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var m struct {
				Config struct{ MediaType string }
				Layers []struct{ MediaType string }
			}
			err = json.NewDecoder(resp.Body).Decode(&m)
			_ = resp.Body.Close()
			if err != nil || len(m.Layers) != 1 || m.Layers[0].MediaType != chartLayer || m.Config.MediaType != "application/vnd.cncf.helm.config.v1+json" {
				t.Errorf("%s: %+v, %v", chart, m, err)
			}
		}
	})
	t.Run("a build that is no release has a version all the same", func(t *testing.T) {
		if out, err := release(t, t.TempDir(), "VERSION=1a2b3c4-dirty", "DIGEST="+digest); err != nil || !strings.Contains(out, "adit-server-0.0.0-dev-1a2b3c4-dirty.tgz") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("without a digest nothing is packaged", func(t *testing.T) {
		if out, err := release(t, t.TempDir(), "VERSION=v1.2.3", "DIGEST=latest"); err == nil || !regexp.MustCompile(`"latest" is not a digest; set DIGEST`).MatchString(out) {
			t.Errorf("%v: %s", err, out)
		}
	})
}
