package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
)

// controlPlane is etcd and the API server.
type controlPlane struct {
	processes
	// addr is where the API server listens and what it tells Pods.
	addr string
	port int
	// etcd are the ports of etcd on loopback.
	etcd [2]int
	// Kubeconfig is that of a user who may do everything.
	Kubeconfig string
}

// service is the address of the API inside of the cluster.
const service = "10.96.0.1"

// begin makes keys and starts both programs.
func (c *controlPlane) begin(also map[string][]string) error {
	dir := filepath.Join(c.dir, "pki")
	p, err := newPKI(dir)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("https://%s:%d", c.addr, c.port)
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	if err := p.server("apiserver", []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(service), net.ParseIP(c.addr)}, names...); err != nil {
		return err
	}
	if err := p.client("admin", url, "admin", "system:masters"); err != nil {
		return err
	}
	for name, user := range also {
		if err := p.client(name, url, user[0], user[1:]...); err != nil {
			return err
		}
	}
	c.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	if err := c.startEtcd(); err != nil {
		return err
	}
	return c.startAPI()
}

func (c *controlPlane) startEtcd() error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", c.etcd[0]), fmt.Sprintf("http://127.0.0.1:%d", c.etcd[1])
	return c.start("etcd", filepath.Join(Bin(), "etcd"), "--data-dir", filepath.Join(c.dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
}

func (c *controlPlane) startAPI() error {
	dir := filepath.Join(c.dir, "pki")
	policy := filepath.Join(c.dir, "audit.yaml")
	if err := os.WriteFile(policy, file("audit.yaml"), 0o644); err != nil {
		return err
	}
	endpoints := "lease"
	if net.ParseIP(c.addr).IsLoopback() {
		endpoints = "none" // nobody could reach it at such an address
	}
	return c.start("kube-apiserver", filepath.Join(Bin(), "kube-apiserver"),
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.etcd[0]), "--bind-address="+c.bind(), "--advertise-address="+c.addr,
		fmt.Sprintf("--secure-port=%d", c.port), "--cert-dir="+dir, "--tls-cert-file="+dir+"/apiserver.crt", "--tls-private-key-file="+dir+"/apiserver.key",
		"--client-ca-file="+dir+"/ca.crt", "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+dir+"/sa.key",
		"--service-account-signing-key-file="+dir+"/sa.key", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=10.96.0.0/16", "--service-node-port-range=30000-32767", "--allow-privileged=true",
		"--kubelet-client-certificate="+dir+"/admin.crt", "--kubelet-client-key="+dir+"/admin.key", "--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog(), "--audit-log-maxsize=1000",
		"--profiling=false", "--endpoint-reconciler-type="+endpoints)
}

// bind is loopback alone where that is the whole network.
func (c *controlPlane) bind() string {
	if ip := net.ParseIP(c.addr); ip.IsLoopback() {
		return c.addr
	}
	return "0.0.0.0"
}

// AuditLog is the file with a line of JSON for each request that the API server has answered.
func (c *controlPlane) AuditLog() string { return filepath.Join(c.dir, "audit.log") }

// ready waits until the API server says so.
func (c *controlPlane) ready(limit time.Duration) error {
	if !until(limit, func() bool {
		_, err := c.kubectl(nil, "get", "--raw", "/readyz")
		return err == nil || c.pid("kube-apiserver") == 0
	}) || c.pid("kube-apiserver") == 0 {
		return fmt.Errorf("the API server is not ready after %s: %s", limit, tail(c.log("kube-apiserver")))
	}
	return nil
}

// StopAPI ends the API server; StartAPI starts it again and waits until it is ready.
func (c *controlPlane) StopAPI() { c.stop("kube-apiserver", 20*time.Second) }

// StartAPI starts the API server again after StopAPI.
func (c *controlPlane) StartAPI() error {
	if err := c.startAPI(); err != nil {
		return err
	}
	return c.ready(time.Minute)
}

// PauseAPI makes the API server silent without an end; ResumeAPI lets it go on.
func (c *controlPlane) PauseAPI() error { return c.signalAPI(syscall.SIGSTOP) }

// ResumeAPI undoes PauseAPI.
func (c *controlPlane) ResumeAPI() error { return c.signalAPI(syscall.SIGCONT) }

func (c *controlPlane) signalAPI(s syscall.Signal) error {
	pid := c.pid("kube-apiserver")
	if pid == 0 {
		return errors.New("the API server does not run")
	}
	return syscall.Kill(pid, s)
}

// kubectl runs kubectl as admin, with text for its standard input.
func (c *controlPlane) kubectl(stdin []byte, args ...string) (string, error) {
	return c.command(stdin, append([]string{filepath.Join(Bin(), "kubectl"), "--kubeconfig", c.Kubeconfig}, args...)...)
}

func (c *controlPlane) end() {
	c.stop("kube-apiserver", 5*time.Second)
	c.stop("etcd", 5*time.Second)
}

// Control is an API server with its store on loopback: no node, no controllers, no Pods.
type Control struct {
	controlPlane
	Tools
}

// ControlPlane starts one for the test, and ends it with the test.
func ControlPlane(t testing.TB) *Control {
	t.Helper()
	Need(t, false)
	dir, err := os.MkdirTemp("", "adit-control-") //nolint:usetesting // removed after its processes
	if err != nil {
		t.Fatal(err)
	}
	c := &Control{}
	c.dir, c.addr = dir, "127.0.0.1"
	c.port = freeport.Run(t, 3)
	c.etcd = [2]int{c.port + 1, c.port + 2}
	c.Tools = Tools{t, &c.controlPlane}
	t.Cleanup(func() {
		c.end()
		if t.Failed() {
			t.Logf("---- API server ----\n%s", tail(c.log("kube-apiserver")))
		}
		_ = os.RemoveAll(dir)
	})
	if err := errors.Join(c.begin(nil), c.ready(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Need skips the test where this machine cannot run Kubernetes, and builds it where it can; nodes
// asks for what Pods need besides.
func Need(t testing.TB, nodes bool) {
	t.Helper()
	if nodes {
		need.RootUser(t, "containers")
		need.Kernel(t, need.NetNamespaces)
		need.Program(t, "ip", "nsenter", "unshare", "containerd", "ctr", "runc", "nft", "iptables", "conntrack")
		if _, err := os.Stat(cniPlugins); err != nil {
			need.Skip(t, "needs the CNI plugins of Debian's containernetworking-plugins in "+cniPlugins)
		}
	}
	if err := Build(); err != nil {
		t.Fatal(err)
	}
}

// command runs a program where the cluster is.
func (p *processes) command(stdin []byte, args ...string) (string, error) {
	line := append(append([]string{}, p.wrap...), args...)
	cmd := exec.Command(line[0], line[1:]...)
	return output(cmd, stdin)
}
