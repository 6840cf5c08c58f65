package kubernetes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/charts"
	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// aditImage gives the node the image of this tree and returns the values that name it.
func aditImage(t *testing.T, k *cluster.Test) []string {
	t.Helper()
	program, err := cluster.Program("cmd/adit")
	if err != nil {
		t.Fatal(err)
	}
	load(t, k, cluster.Image{Name: "adit", Files: map[string]string{"/adit": program}, Entrypoint: []string{"/adit"}})
	return []string{"--set", "image.registry=docker.io", "--set", "image.repository=test/adit", "--set", "image.tag=test", "--set", "image.pullPolicy=Never"}
}

// publicServer is a server outside of the cluster, at the address that Pods and visitors know.
func publicServer(t *testing.T, args ...string) *stack.Server {
	t.Helper()
	return stack.StartServer(t, stack.ServerConfig{Domain: "outside.test", HTTPS: "0.0.0.0:443", HTTP: "0.0.0.0:80",
		Advertise: cluster.OutsideAddr + ":443", Args: args})
}

// seedValues are the values of the document, as a user brings them.
const seedValues = `
controllers:
  main:
    replicas: 2
    annotations:
      reloader.stakater.com/auto: "true"
agent:
  services:
    - hostname: "*.example.dev"
      origin: envoy.network.svc:443
  tcpServices:
    - name: ssh
      origin: forgejo-ssh.network.svc:2222
      listen_port: 2222
  udpServices:
    - name: turn
      origin: coturn.network.svc:3478
      listen_port: 3478
  inviteTokenSecret:
    name: towonel-agent-secret
`

// behind are the services of the document as Pods: HTTPS, an SSH server, a TURN server.
func behind(t *testing.T, k *cluster.Test) (sshKey string) {
	t.Helper()
	programs := need.Program(t, "sshd", "turnserver", "ssh-keygen")
	origin, err := cluster.Program("test/kubernetes/testdata/origin")
	if err != nil {
		t.Fatal(err)
	}
	load(t, k, cluster.Image{Name: "origin", Files: map[string]string{"/origin": origin}, Entrypoint: []string{"/origin"}})
	load(t, k, cluster.Image{Name: "coturn", Files: map[string]string{"/turnserver": programs[1]}, Entrypoint: []string{"/turnserver"}})
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"host", "user"} {
		if out, err := exec.Command(programs[2], "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// The server runs as root in its Pod, as sshd does; its files are root's in an image.
	load(t, k, cluster.Image{Name: "sshd", User: "0:0", Entrypoint: []string{"/usr/sbin/sshd", "-D", "-e", "-f", "/etc/sshd_config"}, Files: map[string]string{
		"/usr/sbin/sshd": programs[0], "/bin/sh": "/bin/dash", "/run/sshd/.keep": write("keep", ""), "/var/empty/.keep": write("keep2", ""),
		"/etc/passwd":      write("passwd", "root:x:0:0::/:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/sh\n"),
		"/etc/sshd_config": write("sshd_config", "Port 2222\nHostKey /keys/host\nAuthorizedKeysFile /keys/user.pub\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\n"),
		"/etc/group":       write("group", "root:x:0:\nsshd:x:100:\n"),
	}})
	namespace(t, k, "network")
	k.Kubectl("-n", "network", "create", "secret", "generic", "ssh-keys", "--from-file="+filepath.Join(dir, "host"), "--from-file="+filepath.Join(dir, "user.pub"))
	deploy := func(name, image, args, port, target, protocol, extra string) {
		k.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: network}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
      - {name: main, image: "docker.io/test/%[2]s:test", imagePullPolicy: Never, args: [%[3]s]%[7]s}
      volumes: [{name: keys, secret: {secretName: ssh-keys, defaultMode: 256}}]
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: network}
spec: {selector: {app: %[1]s}, ports: [{port: %[4]s, targetPort: %[5]s, protocol: %[6]s}]}
`, name, image, args, port, target, protocol, extra))
	}
	deploy("envoy", "origin", "home", "443", "8443", "TCP", "")
	deploy("forgejo-ssh", "sshd", "", "2222", "2222", "TCP", ", volumeMounts: [{name: keys, mountPath: /keys}]")
	deploy("coturn", "coturn", `"-n", "--no-tls", "--no-dtls", "--no-cli", "--log-file=stdout", "--pidfile=/tmp/pid", "--db=/tmp/db"`, "3478", "3478", "UDP", "")
	for _, name := range []string{"envoy", "forgejo-ssh", "coturn"} {
		k.Kubectl("-n", "network", "wait", "deployment/"+name, "--for=condition=Available", "--timeout=120s")
	}
	return filepath.Join(dir, "user")
}

// visitors is a client of names that all lead to the public server.
func visitors(keepAlive bool) *http.Client {
	var d net.Dialer
	return &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, cluster.OutsideAddr+":443")
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the origin's own certificate is none of this test's business
		DisableKeepAlives: !keepAlive, MaxIdleConnsPerHost: 100,
	}}
}

func fetch(c *http.Client, url string, want int) error {
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || want > 0 && len(b) != want || want == 0 && string(b) != "home" {
		return fmt.Errorf("%s: %s, %d bytes, %w", url, resp.Status, len(b), err)
	}
	return nil
}

// TestReplicas is the second document from beginning to end: its values with our chart, real programs
// behind, visitors from outside, and roll-outs that nobody notices.
func TestReplicas(t *testing.T) {
	k := cluster.FromOutside(t)
	if k == nil {
		return
	}
	image := aditImage(t, k)
	sshKey := behind(t, k)
	namespace(t, k, "agents", restricted)
	s := publicServer(t)
	inv := s.Invite("cluster", "--hostname", "*.example.dev", "--tcp-port", "2222", "--udp-port", "3478")
	k.Kubectl("-n", "agents", "create", "secret", "generic", "towonel-agent-secret", "--from-literal=TOWONEL_INVITE_TOKEN="+inv.Token)
	t.Cleanup(func() {
		if t.Failed() {
			out, err := k.Try("-n", "agents", "logs", "-l", "app.kubernetes.io/instance=towonel-agent", "--tail=40", "--prefix")
			t.Log(out, err)
		}
	})
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(seedValues), 0o600); err != nil {
		t.Fatal(err)
	}
	k.Helm(append([]string{"install", "towonel-agent", charts.Dir("adit-agent"), "-n", "agents", "-f", values, "--wait", "--timeout", "120s"}, image...)...)
	const pods = "app.kubernetes.io/instance=towonel-agent"
	c := visitors(true)
	k.Eventually(60*time.Second, func() error { return fetch(c, "https://anything.example.dev/", 0) })

	t.Run("TOW-9 a wildcard is passed through by its SNI", func(t *testing.T) {
		for _, name := range []string{"a", "b"} {
			if err := fetch(c, "https://"+name+".example.dev/", 0); err != nil {
				t.Error(err)
			}
		}
		out, err := exec.Command("openssl", "s_client", "-connect", cluster.OutsideAddr+":443", "-servername", "a.example.dev").CombinedOutput()
		if !strings.Contains(string(out), "self-signed") && !strings.Contains(string(out), "self signed") {
			t.Errorf("the certificate is not the origin's own: %v\n%s", err, out)
		}
	})
	t.Run("TOW-11 SSH on 2222", func(t *testing.T) {
		ssh := need.Program(t, "ssh")[0]
		k.Eventually(30*time.Second, func() error {
			out, err := exec.Command(ssh, "-i", sshKey, "-p", "2222", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
				"root@"+cluster.OutsideAddr, "echo through").CombinedOutput()
			if err != nil || string(out) != "through\n" {
				return fmt.Errorf("%q %w", out, err)
			}
			return nil
		})
	})
	t.Run("TOW-10 TURN on 3478", func(t *testing.T) {
		stun := need.Program(t, "turnutils_stunclient")[0]
		k.Eventually(30*time.Second, func() error {
			// After the first answer it goes on with another port, which is not exposed.
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, stun, "-p", "3478", cluster.OutsideAddr).CombinedOutput()
			if !strings.Contains(string(out), "reflexive addr") {
				return fmt.Errorf("%q %w", out, err)
			}
			return nil
		})
	})
	var agent struct {
		Tenant   string
		Replicas []struct {
			ID       string
			HostName string `json:"host_name"`
		}
	}
	k.Eventually(30*time.Second, func() error {
		s.CLI("agents", "get", "cluster").JSON(t, &agent)
		if len(agent.Replicas) != 2 {
			return fmt.Errorf("%+v", agent)
		}
		return nil
	})
	t.Run("TOW-13 both replicas act for one tenant", func(t *testing.T) {
		if agent.Tenant != "cluster" {
			t.Errorf("%+v", agent)
		}
	})
	t.Run("TOW-14 each replica has a session of its own", func(t *testing.T) {
		if a, b := agent.Replicas[0], agent.Replicas[1]; a.ID == b.ID || a.HostName == b.HostName {
			t.Errorf("%+v", agent)
		}
	})
	t.Run("TOW-12 no volume, and nothing that is written", func(t *testing.T) {
		spec := k.Kubectl("-n", "agents", "get", "pods", "-l", pods, "-o", "jsonpath={.items[0].spec}")
		for _, bad := range []string{"persistentVolumeClaim", "hostPath", "emptyDir"} {
			if strings.Contains(spec, bad) {
				t.Errorf("a Pod has a %s: %s", bad, spec)
			}
		}
		if !strings.Contains(spec, `"readOnlyRootFilesystem":true`) {
			t.Error("a Pod may write to its image")
		}
	})
	t.Run("TOW-8 metrics and health at 9090", func(t *testing.T) {
		pod := k.Kubectl("-n", "agents", "get", "pods", "-l", pods, "-o", "jsonpath={.items[0].status.podIP}")
		for path, want := range map[string]string{"/healthz": "", "/readyz": "", "/metrics": "adit_agent_sessions"} {
			out, err := exec.Command(k.Exec()[0], append(k.Exec()[1:], "curl", "-sS", "-m", "5", "-f", "http://"+pod+":9090"+path)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v %.200s", path, err, out)
			}
		}
	})
	t.Run("O06 Pods that reach nobody are not ready, and are not restarted", func(t *testing.T) { unreachable(t, k) })
	k.Eventually(90*time.Second, func() error { return fetch(c, "https://anything.example.dev/", 0) })
	times := 2
	if need.Soak() {
		times = 10
	}
	t.Run("TOW-15 a roll-out of two replicas loses nothing", func(t *testing.T) {
		for i := range times {
			rollout(t, k, i)
		}
	})
	k.Helm("uninstall", "towonel-agent", "-n", "agents", "--wait")
}

// rollout restarts the agent under 200 requests a second and downloads of 20 s.
func rollout(t *testing.T, k *cluster.Test, round int) {
	t.Helper()
	var asked, failed atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); wg.Wait() }()
	one := func(c *http.Client, url string, want int) {
		asked.Add(1)
		if err := fetch(c, url, want); err != nil {
			if failed.Add(1) < 5 {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	// Half of them on connections that are kept, half on one each.
	for _, c := range []*http.Client{visitors(true), visitors(false)} {
		wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			defer c.CloseIdleConnections()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					wg.Go(func() { one(c, "https://load.example.dev/", 0) })
				}
			}
		})
	}
	var downloads sync.WaitGroup
	for range 5 {
		downloads.Go(func() { one(visitors(false), "https://slow.example.dev/slow?seconds=20", 20*20*50) })
	}
	time.Sleep(time.Second) // the downloads are under way
	k.Kubectl("-n", "agents", "rollout", "restart", "deployment/towonel-agent-adit-agent")
	k.Kubectl("-n", "agents", "rollout", "status", "deployment/towonel-agent-adit-agent", "--timeout=180s")
	downloads.Wait()
	stop()
	wg.Wait()
	t.Logf("round %d: %d requests, %d failed", round, asked.Load(), failed.Load())
	if asked.Load() < 1000 {
		t.Errorf("round %d: only %d requests were made", round, asked.Load())
	}
}

// unreachable cuts the cluster off from outside, for longer than probes have patience.
func unreachable(t *testing.T, k *cluster.Test) {
	t.Helper()
	away := 45 * time.Second
	if need.Soak() {
		away = 10 * time.Minute
	}
	nft := func(text string) {
		t.Helper()
		cmd := exec.Command(k.Exec()[0], append(k.Exec()[1:], need.Find("nft"), "-f", "-")...)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v %s", err, out)
		}
	}
	pods := func(path string) string {
		return k.Kubectl("-n", "agents", "get", "pods", "-l", "app.kubernetes.io/instance=towonel-agent", "-o", "jsonpath={.items[*].status.containerStatuses[0]."+path+"}")
	}
	nft("table ip cut {\nchain forward {\ntype filter hook forward priority filter;\noifname \"gate\" drop\niifname \"gate\" drop\n}\n}\n")
	defer nft("delete table ip cut\n")
	k.Eventually(2*time.Minute, func() error {
		if got := pods("ready"); got != "false false" {
			return fmt.Errorf("ready: %s", got)
		}
		return nil
	})
	for deadline := time.Now().Add(away); time.Now().Before(deadline); time.Sleep(3 * time.Second) {
		if got := pods("restartCount"); got != "0 0" {
			t.Fatalf("restarts: %s", got)
		}
	}
}
