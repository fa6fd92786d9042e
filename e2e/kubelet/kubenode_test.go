package kubelet

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A kubeNode is a node of the lab with its own mounts and processes. containerd and kubelet
// find their files in the usual places, and everything is removed when its first process
// ends.
type kubeNode struct {
	node   string
	dir    string // the same path inside and outside
	cgroup string
	lab    *lab.Lab
	pid    int // of its first process, in this process's PID namespace; 0 when off

	first, kubelet *lab.Process
}

// Debian's containerd does not pin the sandbox image, so kubelet must not collect images.
// OOM scores below our own need a capability that containers, where tests may run, do not
// have.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`

// kubelet's pods use the upper half of a node's pod addresses; the lab's own pods have the
// lower half.
const cniConfig = `{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// Nothing is reserved or evicted, because the nodes share the machine's memory and disk. A
// node renews its lease after a quarter of its duration. Only Kubernetes' own tests look up names:
// they start a DNS server beside the API server.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[1]s/../kubernetes/ca.crt}}
authorization: {mode: AlwaysAllow}
allowedUnsafeSysctls: [net.ipv4.tcp_max_tw_buckets]
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
clusterDNS: [%[3]s]
clusterDomain: cluster.local
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%}
imageGCHighThresholdPercent: 100
nodeLeaseDurationSeconds: 8
oomScoreAdj: 0
podLogsDir: %[1]s/pods
resolvConf: ""
volumePluginDir: /var/lib/kubelet/plugins
`

//go:embed kubenode.sh
var kubeNodeScript []byte

// boot gives the node its own mounts and processes, and starts containerd.
func (n *kubeNode) boot(ctx context.Context) error {
	var err error
	// bash reads the script: the kernel executes no file that another goroutine's fork still has open for writing.
	n.first, err = n.lab.Start(n.node, "kubenode-"+n.node, "bash", n.file("kubenode.sh"), n.dir, n.cgroup)
	if err != nil {
		return err
	}
	err = lab.Await(ctx, limit, "its own mounts and processes", func() error {
		text, err := os.ReadFile(n.file("pid"))
		if err == nil {
			n.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := n.start("containerd", "containerd", "--config", n.file("containerd.toml")); err != nil {
		return err
	}
	return lab.Await(ctx, limit, "containerd", func() error {
		_, err := n.run(ctx, "ctr", "version")
		return err
	})
}

func (n *kubeNode) writeConfigs() error {
	subnet := netip.PrefixFrom(netip.MustParseAddr("10.244."+n.node[1:]+".128"), 25)
	return errors.Join(
		os.MkdirAll(n.file("cni"), 0o755),
		os.WriteFile(n.file("kubenode.sh"), kubeNodeScript, 0o755),
		os.WriteFile(n.file("containerd.toml"), fmt.Appendf(nil, containerdConfig, n.dir), 0o644),
		os.WriteFile(n.file("cni/pods.conflist"), fmt.Appendf(nil, cniConfig, subnet), 0o644),
		os.WriteFile(n.file("kubelet.yaml"), fmt.Appendf(nil, kubeletConfig, n.dir, n.cgroup, apiServer), 0o644),
	)
}

// file returns a path in the node's directory.
func (n *kubeNode) file(name string) string { return filepath.Join(n.dir, name) }

func (n *kubeNode) inside(args []string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(n.pid), "--mount", "--pid", "--"}, args...)
}

func (n *kubeNode) start(name string, args ...string) (*lab.Process, error) {
	return n.lab.Start(n.node, name+"-"+n.node, n.inside(args)...)
}

func (n *kubeNode) run(ctx context.Context, args ...string) (string, error) {
	return n.lab.Namespace(n.node).Run(ctx, n.inside(args)...)
}

// load imports an image into containerd.
func (n *kubeNode) load(ctx context.Context, archive string) error {
	_, err := n.run(ctx, "ctr", "--namespace", "k8s.io", "images", "import", archive)
	return err
}

// startKubelet starts the node's kubelet, which reads kubeconfig and the authority's
// certificate from the node's directory.
func (n *kubeNode) startKubelet(tools string) (err error) {
	n.kubelet, err = n.start("kubelet", tools, "kubelet", "--config", n.file("kubelet.yaml"), "--kubeconfig",
		n.file("kubeconfig"), "--hostname-override", n.node, "--node-ip", lab.NodeAddr(n.node, lab.ClientAddr).String())
	return err
}

// killKubelet crashes the kubelet. The started process is nsenter, its parent, which waits
// for it.
func (n *kubeNode) killKubelet() error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", n.kubelet.PID()))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("kubelet of %s: %w", n.node, err)
	}
	return errors.Join(syscall.Kill(pid, syscall.SIGKILL), n.kubelet.Stop(syscall.SIGCONT, limit))
}

// powerOff ends everything on the node, as a power failure does.
func (n *kubeNode) powerOff(ctx context.Context) error {
	if n.pid == 0 {
		return nil
	}
	// The kernel kills all other processes with the first. The script is its parent and waits
	// for it.
	err := syscall.Kill(n.pid, syscall.SIGKILL)
	n.pid = 0
	return errors.Join(err, n.first.Stop(syscall.SIGCONT, limit), os.Remove(n.file("pid")), removeCgroup(ctx, n.cgroup))
}

// cgroups is the directory of the cgroup v1 hierarchies.
const cgroups = "/sys/fs/cgroup"

// removeCgroup removes a cgroup and its children from every hierarchy, once their processes
// have ended.
func removeCgroup(ctx context.Context, name string) error {
	return lab.Await(ctx, limit, "the end of cgroup "+name, func() error {
		tops, err := filepath.Glob(filepath.Join(cgroups, "*", name))
		for _, top := range tops {
			err = errors.Join(err, removeTree(top))
		}
		return err
	})
}

// removeTree removes directories, the deepest first. A cgroup's files disappear with its
// directory.
func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(d))
	}
	return err
}
