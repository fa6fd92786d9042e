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

// A machine is a node of the lab with its own mounts and processes. containerd and kubelet
// find their files in the usual places, and everything is removed when its first process
// ends.
type machine struct {
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
// node renews its lease after a quarter of its duration.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[1]s/../kubernetes/ca.crt}}
authorization: {mode: AlwaysAllow}
allowedUnsafeSysctls: [net.ipv4.tcp_max_tw_buckets]
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
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

//go:embed machine.sh
var machineScript []byte

// boot turns the node into a machine and starts containerd.
func (m *machine) boot(ctx context.Context) error {
	var err error
	if m.first, err = m.lab.Start(m.node, "machine-"+m.node, m.file("machine.sh"), m.dir, m.cgroup); err != nil {
		return err
	}
	err = lab.Await(ctx, limit, "its own mounts and processes", func() error {
		text, err := os.ReadFile(m.file("pid"))
		if err == nil {
			m.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := m.start("containerd", "containerd", "--config", m.file("containerd.toml")); err != nil {
		return err
	}
	return lab.Await(ctx, limit, "containerd", func() error {
		_, err := m.run(ctx, "ctr", "version")
		return err
	})
}

func (m *machine) writeConfigs() error {
	subnet := netip.PrefixFrom(netip.MustParseAddr("10.244."+m.node[1:]+".128"), 25)
	return errors.Join(
		os.MkdirAll(m.file("cni"), 0o755),
		os.WriteFile(m.file("machine.sh"), machineScript, 0o755),
		os.WriteFile(m.file("containerd.toml"), fmt.Appendf(nil, containerdConfig, m.dir), 0o644),
		os.WriteFile(m.file("cni/pods.conflist"), fmt.Appendf(nil, cniConfig, subnet), 0o644),
		os.WriteFile(m.file("kubelet.yaml"), fmt.Appendf(nil, kubeletConfig, m.dir, m.cgroup), 0o644),
	)
}

// file returns a path in the machine's directory.
func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) inside(args []string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(m.pid), "--mount", "--pid", "--"}, args...)
}

func (m *machine) start(name string, args ...string) (*lab.Process, error) {
	return m.lab.Start(m.node, name+"-"+m.node, m.inside(args)...)
}

func (m *machine) run(ctx context.Context, args ...string) (string, error) {
	return m.lab.Namespace(m.node).Run(ctx, m.inside(args)...)
}

// load imports an image into containerd.
func (m *machine) load(ctx context.Context, archive string) error {
	_, err := m.run(ctx, "ctr", "--namespace", "k8s.io", "images", "import", archive)
	return err
}

// startKubelet starts the node's kubelet, which reads kubeconfig and the authority's
// certificate from the machine's directory.
func (m *machine) startKubelet(tools string) (err error) {
	m.kubelet, err = m.start("kubelet", tools, "kubelet", "--config", m.file("kubelet.yaml"), "--kubeconfig", m.file("kubeconfig"),
		"--hostname-override", m.node, "--node-ip", lab.NodeAddr(m.node, lab.ClientAddr).String())
	return err
}

// killKubelet crashes the kubelet. The started process is nsenter, its parent, which waits
// for it.
func (m *machine) killKubelet() error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.kubelet.PID()))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("kubelet of %s: %w", m.node, err)
	}
	return errors.Join(syscall.Kill(pid, syscall.SIGKILL), m.kubelet.Stop(syscall.SIGCONT, limit))
}

// powerOff ends everything on the machine, as a power failure does.
func (m *machine) powerOff(ctx context.Context) error {
	if m.pid == 0 {
		return nil
	}
	// The kernel kills all other processes with the first. The script is its parent and waits
	// for it.
	err := syscall.Kill(m.pid, syscall.SIGKILL)
	m.pid = 0
	return errors.Join(err, m.first.Stop(syscall.SIGCONT, limit), os.Remove(m.file("pid")), removeCgroup(ctx, m.cgroup))
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
