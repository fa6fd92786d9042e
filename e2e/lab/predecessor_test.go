package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// A predecessor stands in for MetalLB's speaker on a node: FRR's bgpd, which MetalLB runs, too,
// with the configuration that MetalLB writes.
type predecessor struct {
	lab  *Lab
	node string
	vip  netip.Addr
	// graceful is MetalLB's enableGracefulRestart.
	graceful bool
	proc     *Process
}

const predecessorConfig = `
router bgp 64497
 bgp router-id %[1]s
 no bgp ebgp-requires-policy
 no bgp network import-check
 %[3]s
 neighbor 198.51.100.1 remote-as 64496
 neighbor 198.51.100.1 timers 1 3
 neighbor 198.51.100.1 timers connect 1
 address-family ipv4 unicast
  network %[2]s/32
  neighbor 198.51.100.1 activate
`

// start starts bgpd, which announces the address at once. It uses no zebra: it only announces.
func (p *predecessor) start() error {
	dir := p.lab.path("predecessor-" + p.node)
	owner, err := user.Lookup("frr")
	if err != nil {
		return err
	}
	uid, errU := strconv.Atoi(owner.Uid)
	gid, errG := strconv.Atoi(owner.Gid)
	restart := ""
	if p.graceful {
		restart = "bgp graceful-restart\n bgp graceful-restart preserve-fw-state"
	}
	config := filepath.Join(dir, "bgpd.conf")
	err = errors.Join(errU, errG, os.MkdirAll(dir, 0o755), os.Chown(dir, uid, gid),
		os.WriteFile(config, fmt.Appendf(nil, predecessorConfig, NodeAddr(p.node, p.vip), p.vip, restart), 0o644))
	if err != nil {
		return err
	}
	p.proc, err = p.lab.Start(p.node, "predecessor-"+p.node, "/usr/lib/frr/bgpd", "--no_zebra", "--no_kernel",
		"--bgp_port", "0", "--vty_socket", dir, "-u", "frr", "-g", "frr", "-f", config, "-A", "127.0.0.1", "-P", "0",
		"-i", filepath.Join(dir, "bgpd.pid"))
	return err
}

// leave ends bgpd as the end of its pod does. With graceful restart, it does not close the session
// in words, so that the router keeps the routes.
func (p *predecessor) leave() error { return p.proc.Stop(syscall.SIGTERM, Settle) }

// kubeProxyRules are what kube-proxy in nftables mode does for a Service with policy Cluster.
const kubeProxyRules = `
table ip kube-proxy-stand-in {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %[1]s tcp dport { 7, 80 } meta mark set meta mark | 0x4000 numgen random mod 2 vmap { 0 : goto a, 1 : goto b }
	}
	chain a {
		tcp dport 80 dnat to %[2]s:8080
		tcp dport 7 dnat to %[2]s:7000
	}
	chain b {
		tcp dport 80 dnat to %[3]s:8080
		tcp dport 7 dnat to %[3]s:7000
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		meta mark & 0x4000 == 0x4000 masquerade
	}
}
`

// startKubeProxy writes the rules on all nodes. kube-proxy forwards what is in a Service's status on
// each node, whichever program announces it.
func startKubeProxy(ctx context.Context, l *Lab, vip netip.Addr, pods ...string) error {
	file := l.path("kube-proxy.nft")
	rules := fmt.Sprintf(kubeProxyRules, vip, PodAddr(pods[0], corev1.IPv4Protocol),
		PodAddr(pods[1], corev1.IPv4Protocol))
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		return err
	}
	for _, n := range NodeNames {
		if _, err := l.Namespace(n).Run(ctx, "nft", "-f", file); err != nil {
			return err
		}
	}
	return nil
}

// putAdopted writes a Service that has its address from MetalLB: in the status, with MetalLB's
// annotation.
func putAdopted(l *Lab, svc Service, vip netip.Addr) error {
	o := svc.service()
	o.Annotations = map[string]string{"metallb.io/ip-allocated-from-pool": "lan"}
	o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip.String()}}
	var docs []string
	for _, object := range []any{o, svc.slice(corev1.IPv4Protocol)} {
		doc, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		docs = append(docs, string(doc))
	}
	return l.Cluster.PutText(svc.Name, strings.Join(docs, "---\n"))
}

// announcerLabel of a node says which program announces from it. It is that of the task in docs/tasks.
const announcerLabel = "example.com/announcer"

// announcers writes the Nodes with the label where it is not empty.
func announcers(l *Lab, by map[string]string) error {
	text, err := os.ReadFile(filepath.Join(l.Objects, "nodes.yaml"))
	if err != nil {
		return err
	}
	nodes := string(text)
	for node, value := range by {
		if value != "" {
			host := "    kubernetes.io/hostname: " + node + "\n"
			nodes = strings.Replace(nodes, host, host+"    "+announcerLabel+": "+value+"\n", 1)
		}
	}
	return l.Cluster.PutText("nodes", nodes)
}

// convert runs `fanfare migrate metallb` about MetalLB's objects and the lab's cluster, and puts the result in the
// place of the lab's own objects.
func convert(ctx context.Context, l *Lab, objects string, flags ...string) error {
	file := l.path("metallb.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o644); err != nil {
		return err
	}
	source := strings.Join([]string{file, l.path("cluster")}, ",")
	out, err := l.Speaker("n1").command(ctx, append([]string{"migrate", "metallb", "--files", source}, flags...)...)
	if err == nil && !strings.Contains(out, " 0 differences.") {
		err = errors.New("the comparison has differences")
	}
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, out)
	}
	return l.Cluster.PutText("converted", out)
}

// buildLab builds a lab for one test. The shared labs have running speakers.
func buildLab(t *testing.T, with Options, letter string) *Lab {
	t.Helper()
	await(t, built())
	with.ID += letter
	l, err := Up(t.Context(), with)
	await(t, err)
	t.Cleanup(func() { await(t, l.Down()) })
	return l
}
