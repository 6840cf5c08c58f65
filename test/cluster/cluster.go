package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/netlab"
)

// Addresses of the node, of what is outside, and of the cluster's DNS.
const (
	NodeAddr    = "10.231.0.1"
	OutsideAddr = "10.232.0.2"
	GatewayAddr = "10.232.0.1"
	dnsAddr     = "10.96.0.10"
	podRange    = "10.244.0.0/24"
	node        = "node1"
	// Domain is the cluster's, unless Options say another.
	Domain = "cluster.local"
)

const cniPlugins = "/usr/lib/cni"

// Options of a cluster.
type Options struct {
	// Name tells clusters of one machine apart; letters, digits and dashes, at most 12.
	Name string
	// Domain of Services; empty = cluster.local.
	Domain string
	// Log hears how far it is; nil = nobody.
	Log func(string)
}

// Cluster is one with a node.
type Cluster struct {
	controlPlane
	opts Options
	// namespace and outside are names for `ip netns`.
	namespace, outside string
}

var names = regexp.MustCompile(`^[a-z0-9-]{1,12}$`)

func newCluster(o Options) (*Cluster, error) {
	if !names.MatchString(o.Name) {
		return nil, fmt.Errorf("name %q: use letters, digits and dashes, at most 12", o.Name)
	}
	if o.Domain == "" {
		o.Domain = Domain
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	c := &Cluster{opts: o, namespace: "adit-k8s-" + o.Name, outside: "adit-out-" + o.Name}
	// Paths of sockets are short.
	c.dir = filepath.Join(os.TempDir(), "adit-k8s-"+o.Name)
	c.addr, c.port, c.etcd = NodeAddr, 6443, [2]int{2379, 2380}
	c.Kubeconfig = filepath.Join(c.dir, "pki", "admin.kubeconfig")
	c.wrap = []string{need.Find("nsenter"), "--target", "", "--mount", "--net"}
	if pid := c.pid(holder); pid != 0 {
		c.enter(pid)
	}
	return c, nil
}

// holder is the process that the cluster's namespaces belong to.
const holder = "holder"

func (c *Cluster) enter(pid int) { c.wrap[2] = fmt.Sprint(pid) }

// Up starts a cluster and waits until its node and its DNS are ready. One of the same name that is
// there, or was left behind, is ended first.
func Up(o Options) (*Cluster, error) {
	c, err := newCluster(o)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := c.Down(); err != nil {
		return nil, fmt.Errorf("what a run before has left: %w", err)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"namespaces", c.network}, {"control plane", c.beginAll}, {"containerd", c.startContainerd}, {"API server", func() error { return c.ready(2 * time.Minute) }},
		{"node", c.startNode}, {"DNS", c.startDNS},
	} {
		if err := step.do(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", step.name, err), c.Down())
		}
		c.opts.Log(fmt.Sprintf("%s after %s", step.name, time.Since(start).Round(100*time.Millisecond)))
	}
	return c, nil
}

// network makes the two network namespaces, and the mount namespace of the node.
func (c *Cluster) network() error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	for _, ns := range []string{c.namespace, c.outside} {
		if err := ip("netns", "add", ns); err != nil {
			return err
		}
		if err := ip("-n", ns, "link", "set", "lo", "up"); err != nil {
			return err
		}
	}
	hold := processes{dir: c.dir, wrap: []string{need.Find("nsenter"), "--net=/run/netns/" + c.namespace, need.Find("unshare"), "--mount", "--propagation", "private"}}
	if err := hold.start(holder, "sleep", "infinity"); err != nil {
		return err
	}
	c.enter(c.pid(holder))
	in, out := []string{"-n", c.namespace}, []string{"-n", c.outside}
	for _, line := range [][]string{
		append(in, "link", "add", "node0", "type", "bridge"), append(in, "address", "add", NodeAddr+"/24", "dev", "node0"), append(in, "link", "set", "node0", "up"),
		append(in, "route", "add", "default", "dev", "node0"),
		append(in, "link", "add", "gate", "type", "veth", "peer", "name", "gate", "netns", c.outside),
		append(in, "address", "add", GatewayAddr+"/24", "dev", "gate"), append(in, "link", "set", "gate", "up"),
		append(out, "address", "add", OutsideAddr+"/24", "dev", "gate"), append(out, "link", "set", "gate", "up"),
		append(out, "route", "add", NodeAddr+"/32", "via", GatewayAddr),
	} {
		if err := ip(line...); err != nil {
			return err
		}
	}
	// Pods dial out behind the node's address, as in a network that knows nothing of them.
	nat := fmt.Sprintf("table ip outside {\nchain out {\ntype nat hook postrouting priority srcnat;\noifname \"gate\" ip saddr %s masquerade\n}\n}\n", podRange)
	if _, err := c.command([]byte(nat), need.Find("nft"), "-f", "-"); err != nil {
		return err
	}
	// Of kernel settings the kubelet changes some for the whole machine; Down puts them back.
	before, err := sysctls()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "sysctl.before"), []byte(before), 0o644); err != nil {
		return err
	}
	_, err = c.command([]byte("1"), "tee", "/proc/sys/net/ipv4/ip_forward")
	return err
}

func (c *Cluster) beginAll() error {
	return c.begin(map[string][]string{
		"controller-manager": {"system:kube-controller-manager"}, "scheduler": {"system:kube-scheduler"},
		"kubelet": {"system:node:" + node, "system:nodes"}, "proxy": {"system:kube-proxy"},
	})
}

func (c *Cluster) startContainerd() error {
	if err := buildImages(); err != nil {
		return err
	}
	for name, to := range map[string]string{"containerd.toml": "containerd.toml", "cni.json": "cni/10-pods.conflist", "kubelet.yaml": "kubelet.yaml", "proxy.yaml": "proxy.yaml"} {
		path := filepath.Join(c.dir, to)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, fill(name, c.values()), 0o644); err != nil {
			return err
		}
	}
	if err := c.start("containerd", need.Find("containerd"), "--config", filepath.Join(c.dir, "containerd.toml")); err != nil {
		return err
	}
	if !until(time.Minute, func() bool { _, err := c.ctr("version"); return err == nil }) {
		return fmt.Errorf("containerd does not answer: %s", tail(c.log("containerd")))
	}
	for _, name := range []string{"pause", "coredns"} {
		if err := c.LoadImage(filepath.Join(Bin(), name+".tar")); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) values() map[string]string {
	return map[string]string{
		"Dir": c.dir, "Pause": imageName("pause"), "CNI": cniPlugins, "Pods": podRange, "Cgroup": c.cgroup(), "Domain": c.opts.Domain,
		"DNS": dnsAddr, "Node": node, "Outside": OutsideAddr, "Image": imageName("coredns"),
	}
}

func (c *Cluster) ctr(args ...string) (string, error) {
	return c.command(nil, append([]string{need.Find("ctr"), "--address", filepath.Join(c.dir, "containerd.sock"), "--namespace", "k8s.io"}, args...)...)
}

// LoadImage gives the node an image from an archive.
func (c *Cluster) LoadImage(archive string) error {
	_, err := c.ctr("images", "import", "--all-platforms", archive)
	return err
}

func (c *Cluster) startNode() error {
	if err := makeCgroups(c.cgroup()); err != nil {
		return err
	}
	pki := filepath.Join(c.dir, "pki")
	config := func(name string) string { return filepath.Join(pki, name+".kubeconfig") }
	bin := func(name string) string { return filepath.Join(Bin(), name) }
	return errors.Join(
		c.start("controller-manager", bin("kube-controller-manager"), "--kubeconfig="+config("controller-manager"), "--authentication-kubeconfig="+config("controller-manager"),
			"--authorization-kubeconfig="+config("controller-manager"), "--service-account-private-key-file="+pki+"/sa.key", "--root-ca-file="+pki+"/ca.crt",
			"--use-service-account-credentials=true", "--leader-elect=false", "--cert-dir="+pki, "--bind-address=127.0.0.1",
			"--cluster-signing-cert-file="+pki+"/ca.crt", "--cluster-signing-key-file="+pki+"/ca.key"),
		c.start("scheduler", bin("kube-scheduler"), "--kubeconfig="+config("scheduler"), "--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir="+pki),
		c.start("kubelet", bin("kubelet"), "--config="+filepath.Join(c.dir, "kubelet.yaml"), "--kubeconfig="+config("kubelet"), "--root-dir="+filepath.Join(c.dir, "kubelet"),
			"--hostname-override="+node, "--node-ip="+NodeAddr, "--cert-dir="+filepath.Join(c.dir, "kubelet-pki")),
		c.start("proxy", bin("kube-proxy"), "--config="+filepath.Join(c.dir, "proxy.yaml")),
		c.wait("node/"+node, "Ready", "kubelet"),
	)
}

func (c *Cluster) startDNS() error {
	if _, err := c.kubectl(fill("dns.yaml", c.values()), "apply", "--validate=strict", "-f", "-"); err != nil {
		return err
	}
	return c.wait("-n=kube-system deployment/coredns", "Available", "kubelet")
}

// wait waits until an object has a condition; log names the program to blame.
func (c *Cluster) wait(object, condition, log string) error {
	var err error
	args := append(strings.Fields(object), "--for=condition="+condition, "--timeout=1s")
	if !until(2*time.Minute, func() bool { _, err = c.kubectl(nil, append([]string{"wait"}, args...)...); return err == nil }) {
		return fmt.Errorf("%s is not %s: %w\n%s", object, condition, err, tail(c.log(log)))
	}
	return nil
}

// Down ends everything of the cluster and takes away what it made.
func (c *Cluster) Down() error {
	for _, name := range []string{"kubelet", "proxy"} {
		c.stop(name, 10*time.Second)
	}
	if c.pid("containerd") != 0 {
		c.endPods()
	}
	for _, name := range []string{"scheduler", "controller-manager", "containerd"} {
		c.stop(name, 10*time.Second)
	}
	c.end()
	c.stop(holder, time.Second)
	killWith(c.dir)
	errs := []error{removeCgroups(c.cgroup()), restore(filepath.Join(c.dir, "sysctl.before"))}
	for _, ns := range []string{c.namespace, c.outside} {
		if _, err := os.Stat("/run/netns/" + ns); err == nil {
			errs = append(errs, ip("netns", "delete", ns))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// endPods ends all containers: nothing else would, once the kubelet is gone.
func (c *Cluster) endPods() {
	list := func(kind string) []string {
		out, _ := c.ctr(kind, "ls", "-q")
		return strings.Fields(out)
	}
	for _, id := range list("tasks") {
		_, _ = c.ctr("tasks", "kill", "-s", "SIGKILL", id)
	}
	until(10*time.Second, func() bool {
		for _, id := range list("tasks") {
			_, _ = c.ctr("tasks", "rm", "-f", id)
		}
		return len(list("tasks")) == 0
	})
	for _, id := range list("containers") {
		_, _ = c.ctr("containers", "rm", id)
	}
}

// Exec is the command line that runs a program where the node is.
func (c *Cluster) Exec() []string { return c.wrap }

// Outside is the command line that runs a program outside of the cluster.
func (c *Cluster) Outside() []string { return []string{need.Find("ip"), "netns", "exec", c.outside} }

func ip(args ...string) error {
	if out, err := exec.Command(need.Find("ip"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// sharedName is that of the cluster that Shared starts: each test program has one of its own. A program
// that runs a test again outside of the cluster hands the name on.
func sharedName() string {
	if name := os.Getenv(nameVariable); name != "" {
		return name
	}
	return fmt.Sprint("t", os.Getpid())
}

const nameVariable = "ADIT_TEST_CLUSTER"

var ofProgram = regexp.MustCompile(`adit-k8s-(t(\d+))$`)

// sweep ends the clusters of test programs that were killed.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "adit-k8s-t*"))
	for _, dir := range dirs {
		m := ofProgram.FindStringSubmatch(dir)
		if m == nil {
			continue
		}
		if _, gone := os.Stat("/proc/" + m[2]); gone != nil {
			err = errors.Join(err, Down(m[1]))
		}
	}
	return err
}

var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Test is a cluster in the hands of one test.
type Test struct {
	*Cluster
	Tools
}

// Shared is the cluster of this test program; the first test that asks starts it.
func Shared(t testing.TB) *Test {
	t.Helper()
	Need(t, true)
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		if shared.err = sweep(); shared.err == nil {
			shared.cluster, shared.err = Up(Options{Name: sharedName(), Log: func(s string) { t.Log(s) }})
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &Test{shared.cluster, Tools{t, &shared.cluster.controlPlane}}
}

// FromOutside runs the calling test again outside of the cluster, where its servers and clients then are.
// There it returns the cluster, and nil where it was called first, when the test has ended there.
func FromOutside(t *testing.T) *Test {
	t.Helper()
	if os.Getenv(nameVariable) != "" {
		c, err := Attach(sharedName())
		if err != nil {
			t.Fatal(err)
		}
		return &Test{c, Tools{t, &c.controlPlane}}
	}
	c := Shared(t)
	netlab.Again(t, c.outside, nameVariable+"="+c.opts.Name)
	return nil
}

// End ends the shared cluster; TestMain calls it after all tests.
func End() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return nil
	}
	err := shared.cluster.Down()
	shared.cluster, shared.err = nil, errors.New("the cluster has ended")
	return err
}

// Attach finds a cluster that runs.
func Attach(name string) (*Cluster, error) {
	c, err := newCluster(Options{Name: name})
	if err == nil && c.pid(holder) == 0 {
		err = fmt.Errorf("no cluster %q runs; start one with `make cluster-up`", name)
	}
	return c, err
}

// Shell replaces this process by a program where the node is, with kubectl and helm ready.
func (c *Cluster) Shell(args ...string) error {
	env := append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "PATH="+Bin()+":"+os.Getenv("PATH"))
	line := append(append([]string{}, c.wrap...), args...)
	return syscall.Exec(line[0], line, env)
}

// Down ends the cluster of a name, if there is one.
func Down(name string) error {
	c, err := newCluster(Options{Name: name})
	if err != nil {
		return err
	}
	return c.Down()
}
