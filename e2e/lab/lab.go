package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/observer"
)

const (
	// root holds a directory per lab. /run is empty after a reboot, as is the list of
	// namespaces.
	root = "/run/fanfare-lab"
	// prefix begins the name of every namespace of a lab.
	prefix = "ff-"
)

// Options describe the lab to build.
type Options struct {
	ID       string   // part of the namespaces' names; letters and digits
	Topology string   // path of a containerlab file
	Overlays []string // paths of files with additions
	Objects  string   // folder of YAML that the cluster starts with
	Binary   string   // path of fanfare
	Software string   // of the router: FRR (the default) or BIRD
	Members  bool     // speakers share a membership key, which layer 2 needs

	// RouterConfig is configuration of FRR beside the topology's, in vtysh's syntax.
	RouterConfig string

	// Slack multiplies the bounds on delays; zero means one, for an idle machine. The report
	// shows the measured delays in any case.
	Slack int

	// Store opens the source of objects for the speakers. The lab has its namespaces, links
	// and router by then, and nothing else. Nil means a folder of YAML.
	Store func(context.Context, *Lab) (Store, error)
}

// A Lab is a topology that is up.
type Lab struct {
	Options
	Router   *Router
	Cluster  *Cluster
	Client   *Client
	Observer *observer.Observer

	topology   *Topology
	namespaces map[string]*Namespace
	pods       map[string]*Pod
	speakers   map[string]*Speaker
}

// The lab's addresses follow a pattern; the topology file lists them in full.
var (
	// ClientAddr is the client's address, which pods should see.
	ClientAddr  = netip.MustParseAddr("203.0.113.10")
	ClientAddr6 = netip.MustParseAddr("2001:db8:203::10")
	// NodeNames are the nodes with speakers.
	NodeNames = []string{"n1", "n2", "n3"}
	// PodNames are "p", the number of the pod's node, and the pod's own number.
	PodNames = []string{"p11", "p12", "p21", "p22", "p31", "p32"}
)

// NodeAddr returns a node's address in the family of like.
func NodeAddr(node string, like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.MustParseAddr("198.51.100.1" + node[1:])
	}
	return netip.MustParseAddr("2001:db8:51::1" + node[1:])
}

// NodeOf returns the node of a pod.
func NodeOf(pod string) string { return "n" + pod[1:2] }

// Up builds a lab. After an error nothing of it is left.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if _, err := Sweep(false); err != nil {
		return nil, err
	}
	t, err := o.topology()
	if err != nil {
		return nil, err
	}
	l := &Lab{
		Options: o, topology: t, namespaces: map[string]*Namespace{}, pods: map[string]*Pod{},
		speakers: map[string]*Speaker{},
	}
	// Mkdir fails if the directory exists: two labs of one name must not share it, and the
	// second must not remove the first.
	if err := errors.Join(os.MkdirAll(root, 0o755), os.Mkdir(l.path(), 0o755)); err != nil {
		return nil, fmt.Errorf("lab %s: %w; is it up? `make lab-down` removes it", l.ID, err)
	}
	if err := l.up(ctx); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return l, nil
}

func (o Options) topology() (*Topology, error) {
	t, err := ReadTopology(o.Topology)
	for _, path := range o.Overlays {
		if err == nil {
			err = t.overlay(path)
		}
	}
	return t, err
}

func (l *Lab) up(ctx context.Context) error {
	for _, d := range []string{"pids", "log", "run"} {
		if err := os.Mkdir(l.path(d), 0o755); err != nil {
			return err
		}
	}
	if err := writeRecord(l.path("owner"), os.Getpid()); err != nil {
		return err
	}
	if err := l.wire(ctx); err != nil {
		return err
	}
	var err error
	if l.Observer, err = l.observe(); err != nil {
		return err
	}
	if l.Members {
		if err := os.WriteFile(l.path(membersKey), []byte("the laboratory's key\n"), 0o600); err != nil {
			return err
		}
	}
	if err := l.openCluster(ctx); err != nil {
		return err
	}
	l.Client = l.clientIn("client")
	l.Client.CyclePorts()
	return l.startPods(ctx)
}

func (l *Lab) openCluster(ctx context.Context) (err error) {
	l.Cluster = &Cluster{}
	if l.Options.Store == nil {
		l.Cluster.Store, err = newFolder(l.path("cluster"))
	} else {
		l.Cluster.Store, err = l.Options.Store(ctx, l)
	}
	if err != nil {
		return err
	}
	return l.Cluster.restore(l.Objects)
}

// wire creates the namespaces and the links between them, and runs each node's exec
// commands.
func (l *Lab) wire(ctx context.Context) error {
	for _, n := range l.topology.Nodes {
		if err := l.addNamespace(ctx, n); err != nil {
			return err
		}
	}
	for _, k := range l.topology.Links {
		if err := l.addLink(ctx, k); err != nil {
			return err
		}
	}
	for _, n := range l.topology.Nodes {
		if err := l.runExec(ctx, n); err != nil {
			return err
		}
	}
	if l.Router == nil {
		return fmt.Errorf("%s: no node starts FRR", l.Topology)
	}
	return nil
}

func (l *Lab) addNamespace(ctx context.Context, n Node) error {
	ns, err := NewNamespace(ctx, l.namespaceName(n.Name))
	if err != nil {
		return err
	}
	l.namespaces[n.Name] = ns
	return ns.Do(func() error {
		for _, key := range slices.Sorted(maps.Keys(n.Sysctls)) {
			// /proc/sys/net shows the namespace of the reading thread.
			file := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
			if err := os.WriteFile(file, []byte(n.Sysctls[key]), 0); err != nil {
				return fmt.Errorf("%s: sysctl %s: %w", n.Name, key, err)
			}
		}
		return nil
	})
}

func (l *Lab) addLink(ctx context.Context, k Link) error {
	args := []string{"link", "add", k.A.Name, "netns", l.namespaceName(k.A.Node), "type", "veth",
		"peer", "name", k.B.Name, "netns", l.namespaceName(k.B.Node)}
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	for _, e := range []Interface{k.A, k.B} {
		for _, iface := range []string{"lo", e.Name} {
			if _, err := l.namespaces[e.Node].Run(ctx, "ip", "link", "set", iface, "up"); err != nil {
				return err
			}
		}
	}
	return nil
}

// runExec runs a node's commands. It replaces the command that starts FRR in a container by
// a start of the lab's Router.
func (l *Lab) runExec(ctx context.Context, n Node) error {
	for _, args := range n.Exec {
		if args[0] == "/usr/lib/frr/frrinit.sh" {
			r, err := l.newRouter(n)
			if err != nil {
				return err
			}
			l.Router = r
			if err := r.Start(ctx); err != nil {
				return err
			}
			continue
		}
		if _, err := l.namespaces[n.Name].Run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Namespace returns the namespace of a node.
func (l *Lab) Namespace(node string) *Namespace { return l.namespaces[node] }

func (l *Lab) namespaceName(node string) string { return prefix + l.ID + "-" + node }

// Dir returns the lab's directory. Down removes it.
func (l *Lab) Dir() string { return l.path() }

// path returns a path in the lab's directory.
func (l *Lab) path(parts ...string) string {
	return filepath.Join(append([]string{root, l.ID}, parts...)...)
}

// Down stops all processes and removes every trace of the lab.
func (l *Lab) Down() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l.speakers)) {
		errs = append(errs, l.speakers[name].stop(syscall.SIGKILL))
	}
	for _, name := range slices.Sorted(maps.Keys(l.pods)) {
		l.pods[name].Kill()
	}
	if l.Router != nil {
		errs = append(errs, l.Router.stop(syscall.SIGKILL))
	}
	l.closeHandles()
	return errors.Join(append(errs, remove(l.ID))...)
}

// closeHandles closes the sockets and namespace handles of this process.
func (l *Lab) closeHandles() {
	if l.Observer != nil {
		l.Observer.Close()
	}
	for _, n := range l.namespaces {
		n.Close()
	}
}

// Keep leaves the lab up when this process ends: the lab command (binary) runs the pods
// from now on. Only Sweep(true) removes such a lab.
func (l *Lab) Keep(binary string) error {
	for _, name := range slices.Sorted(maps.Keys(l.pods)) {
		l.pods[name].Kill()
		if _, err := l.startProcess(l.namespaces[name], "pod-"+name, binary, "pod", name); err != nil {
			return err
		}
	}
	l.closeHandles()
	return os.Rename(l.path("owner"), l.path("kept"))
}

// Sweep removes labs whose process has ended, and with kept also labs that were left up on
// purpose. It returns their names.
func Sweep(kept bool) (removed []string, err error) {
	dirs, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range dirs {
		if !abandoned(filepath.Join(root, d.Name()), kept) {
			continue
		}
		if err := remove(d.Name()); err != nil {
			errs = append(errs, fmt.Errorf("lab %s: %w", d.Name(), err))
			continue
		}
		removed = append(removed, d.Name())
	}
	return removed, errors.Join(errs...)
}

func abandoned(dir string, kept bool) bool {
	if _, err := os.Stat(filepath.Join(dir, "kept")); err == nil {
		return kept
	}
	pid, err := readRecord(filepath.Join(dir, "owner"))
	if errors.Is(err, fs.ErrNotExist) {
		// The lab is between Mkdir and writeRecord, unless the directory is old.
		info, err := os.Stat(dir)
		return err == nil && time.Since(info.ModTime()) > time.Minute
	}
	return err == nil && pid == 0
}

// remove ends a lab's processes, then deletes its namespaces, then its directory. In this
// order an interrupted removal can be repeated.
func remove(id string) error {
	dir := filepath.Join(root, id)
	if err := killRecorded(dir); err != nil {
		return err
	}
	names, err := filepath.Glob("/run/netns/" + prefix + id + "-*")
	if err != nil {
		return err
	}
	for _, name := range names {
		out, err := exec.Command("ip", "netns", "delete", filepath.Base(name)).CombinedOutput()
		// Another process may sweep at the same time.
		if _, gone := os.Stat(name); err != nil && !errors.Is(gone, fs.ErrNotExist) {
			return fmt.Errorf("ip netns delete %s: %w: %s", filepath.Base(name), err, out)
		}
	}
	return os.RemoveAll(dir)
}
