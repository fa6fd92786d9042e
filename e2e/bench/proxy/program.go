package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// A program describes one of the measured programs.
type program struct {
	name string
	ours bool // Fanfare, which serves load balancers' addresses only
	// args returns the command for a node with the given name in the cluster. It writes needed
	// files to paths that start with base.
	args func(b *bench, nodeName, base string) ([]string, error)
	// dial connects to the metrics endpoint.
	dial func(ctx context.Context, p *process) (net.Conn, error)
	// loaded says from the metrics whether so many Services are in the kernel.
	loaded func(metrics map[string]float64, services int) bool
	// env returns additions to this process's environment.
	env func(b *bench) ([]string, error)
	// ownMounts starts the program in its own mount namespace.
	ownMounts bool
	// lastWrite changes in the metrics whenever the program changes its rules. It is used if
	// noEvents is set: the kernel sends no notifications for this program's changes.
	lastWrite func(metrics map[string]float64) float64
	noEvents  bool
	// writeTime is the metric of the time spent on writing rules.
	writeTime string
}

func fanfare(name string, flags ...string) *program {
	return &program{
		name: name, ours: true,
		args: func(b *bench, nodeName, base string) ([]string, error) {
			kubeconfig := base + ".kubeconfig"
			args := []string{b.Binary, "speaker", "--kubeconfig", kubeconfig, "--node-name", nodeName, "--run-dir",
				base + "-run"}
			return append(args, flags...), b.control.WriteSpeakerKubeconfig(kubeconfig, nodeName)
		},
		dial: func(ctx context.Context, p *process) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", rundir.SocketPath(p.base+"-run"))
		},
		loaded: func(m map[string]float64, services int) bool {
			return m["fanfare_proxy_vips"] >= float64(services) && m["fanfare_speaker_pass_duration_seconds_count"] > 0
		},
		lastWrite: func(m map[string]float64) float64 { return m["fanfare_proxy_transaction_duration_seconds_count"] },
		writeTime: "fanfare_speaker_pass_duration_seconds_sum",
	}
}

// withFastPath returns Fanfare with a fast path in its own BPF file system.
func withFastPath() *program {
	p := fanfare(fastName, "--proxy-mode", "nftables", "--fast-path", "--fast-path-interface", clientLink)
	plain := p.args
	p.args = func(b *bench, nodeName, base string) ([]string, error) {
		dir := base + "-bpf"
		args, err := plain(b, nodeName, base)
		mount := []string{"sh", "-c", `mount -t bpf bpf "$0" && exec "$@"`, dir}
		return slices.Concat(mount, args, []string{"--fast-path-dir", filepath.Join(dir, "fanfare")}),
			errors.Join(err, os.Mkdir(dir, 0o755))
	}
	p.ownMounts = true
	p.loaded = func(m map[string]float64, services int) bool {
		return m["fanfare_proxy_fast_path_frontends"] >= float64(services)
	}
	return p
}

// proxyConfig makes kube-proxy as fast as possible: by default it waits up to a second
// between two changes. clusterCIDR contains the client, so that kube-proxy preserves its
// address for a cluster IP as for a pod.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %[1]s
clientConnection: {kubeconfig: %[2]s}
clusterCIDR: "` + clientNet + `.0.0/16"
hostnameOverride: %[3]s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0}
nftables: {minSyncPeriod: 1ms}
iptables: {minSyncPeriod: 1ms}
`

// legacy are the iptables programs that use the kernel's own iptables. The nftables-based
// ones take a time that grows with the square of the number of chains: kube-proxy would
// load for minutes instead of seconds.
var legacy = map[string]string{
	"iptables": "iptables-legacy", "iptables-save": "iptables-legacy-save",
	"iptables-restore": "iptables-legacy-restore", "ip6tables": "ip6tables-legacy",
	"ip6tables-save": "ip6tables-legacy-save", "ip6tables-restore": "ip6tables-legacy-restore",
}

// withLegacyIptables puts those programs first in the PATH of a program.
func withLegacyIptables(p *program) *program {
	p.env = func(b *bench) ([]string, error) {
		dir := filepath.Join(b.dir, "legacy")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		for name, is := range legacy {
			path, err := exec.LookPath(is)
			if err == nil {
				err = os.Symlink(path, filepath.Join(dir, name))
			}
			if err != nil && !errors.Is(err, os.ErrExist) {
				return nil, err
			}
		}
		return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, nil
	}
	p.noEvents = true
	return p
}

func kubeProxy(mode kube.ProxyMode) *program {
	return &program{
		name: "kube-proxy " + string(mode),
		args: func(b *bench, nodeName, base string) ([]string, error) {
			kubeconfig, config := base+".kubeconfig", base+".yaml"
			return []string{b.tools, "kube-proxy", "--config", config}, errors.Join(
				b.control.WriteKubeconfig(kubeconfig, "system:kube-proxy"),
				os.WriteFile(config, fmt.Appendf(nil, proxyConfig, mode, kubeconfig, nodeName), 0o600),
			)
		},
		dial: func(ctx context.Context, p *process) (net.Conn, error) {
			return p.on.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:10249"))
		},
		loaded: func(m map[string]float64, _ int) bool {
			// Each address family has a writer, which takes the pending changes when it starts and
			// sets the timestamp when it has finished. The metrics of both are added up.
			pending := m["kubeproxy_sync_proxy_rules_endpoint_changes_pending"] +
				m["kubeproxy_sync_proxy_rules_service_changes_pending"]
			return m["kubeproxy_sync_proxy_rules_last_timestamp_seconds"] > 1.5*float64(time.Now().Unix()) &&
				pending == 0
		},
		lastWrite: func(m map[string]float64) float64 { return m["kubeproxy_sync_proxy_rules_last_timestamp_seconds"] },
		writeTime: "kubeproxy_sync_proxy_rules_duration_seconds_sum",
	}
}

// A process is a program that runs on a node.
type process struct {
	*program
	on    *node
	base  string // common prefix of its files
	cmd   *exec.Cmd
	group *memoryGroup
	began time.Time
	done  chan struct{} // closed when it has ended
}

// start starts a program on a node of the world, which the cluster knows as nodeName.
func (b *bench) start(p *program, on *node, nodeName string) (*process, error) {
	r := &process{program: p, on: on, base: filepath.Join(b.dir, on.Name), done: make(chan struct{})}
	args, err := p.args(b, nodeName, r.base)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(r.base + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if r.group, err = newMemoryGroup(on.Name); err != nil {
		return nil, err
	}
	r.cmd = exec.Command(args[0], args[1:]...)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if p.env != nil {
		more, err := p.env(b)
		if err != nil {
			return nil, err
		}
		r.cmd.Env = append(os.Environ(), more...)
	}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if p.ownMounts {
		r.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	r.began = time.Now()
	if err := on.Do(r.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = r.cmd.Wait() // it is killed
		close(r.done)
	}()
	return r, r.group.add(r.cmd.Process.Pid)
}

func (p *process) metrics(ctx context.Context) (map[string]float64, error) {
	return measure.Scrape(ctx, func(ctx context.Context) (net.Conn, error) { return p.dial(ctx, p) })
}

// loadLimit bounds the wait for a program to write all rules. kube-proxy needs minutes for 50,000 Services.
const loadLimit = 20 * time.Minute

// awaitLoaded waits until all Services are in the kernel.
func (p *process) awaitLoaded(ctx context.Context, services int) error {
	err := lab.Await(ctx, loadLimit, p.name, func() error {
		select {
		case <-p.done:
			return errors.New("it ended")
		default:
		}
		m, err := p.metrics(ctx)
		if err == nil && !p.loaded(m, services) {
			err = errors.New("it has not written all")
		}
		return err
	})
	if err != nil {
		text, _ := os.ReadFile(p.base + ".log") // nothing, if there is none
		err = fmt.Errorf("%w; the end of its log:\n%s", err, text[max(0, len(text)-2000):])
	}
	return err
}

// kill ends the process and its children as a crash does. Their rules stay in the kernel.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return errors.Join(err, p.group.kill())
}

// A memoryGroup is a control group. The kernel accounts the rules' memory to it, also after
// its processes have ended.
type memoryGroup struct {
	dir, usage string
	field      string // field in the file usage; empty: the file is a number
}

// memoryRoots are the parent directories in cgroup v2 and v1.
var memoryRoots = [2]string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"}

// newMemoryGroup creates a group of the machine's cgroup version.
func newMemoryGroup(name string) (*memoryGroup, error) {
	g := &memoryGroup{dir: memoryRoots[0], usage: "memory.stat", field: "kernel "}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		g = &memoryGroup{dir: memoryRoots[1], usage: "memory.kmem.usage_in_bytes"}
	}
	g.dir = filepath.Join(g.dir, name)
	return g, os.Mkdir(g.dir, 0o755)
}

func (g *memoryGroup) add(pid int) error {
	return os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// kill ends all processes of the group and waits for their end.
func (g *memoryGroup) kill() error {
	return lab.Await(context.Background(), 10*time.Second, g.dir, func() error {
		text, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
		if err != nil || len(text) == 0 {
			return err
		}
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
			}
		}
		return errors.New("it has processes")
	})
}

// kernel returns the bytes that the kernel holds for the group.
func (g *memoryGroup) kernel() (int64, error) {
	path := filepath.Join(g.dir, g.usage)
	if g.field != "" {
		value, err := measure.Field(path, g.field)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(value, 10, 64)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text[:max(0, len(text)-1)]), 10, 64)
}
