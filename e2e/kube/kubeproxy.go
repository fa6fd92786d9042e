package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A ProxyMode is kube-proxy's mode.
type ProxyMode string

// The modes that every node supports.
const (
	NFTables ProxyMode = "nftables"
	IPTables ProxyMode = "iptables"
)

// proxyConfig leaves minSyncPeriod at its default of one second. The tests do not compare
// times; e2e/bench/kube sets it.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: "10.244.0.0/16,2001:db8:244::/48"
hostnameOverride: %s
healthzBindAddress: %s
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0}
`

// proxyHealthz is kube-proxy's default port on loopback.
var proxyHealthz = netip.MustParseAddrPort("127.0.0.1:10256")

// StartProxies starts kube-proxy on every node with its own Kubernetes account, and returns
// when all have written their rules.
func (l *Lab) StartProxies(ctx context.Context, mode ProxyMode) error {
	for _, node := range lab.NodeNames {
		if err := l.StartProxy(node, mode); err != nil {
			return err
		}
	}
	for _, node := range lab.NodeNames {
		if err := l.awaitProxy(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// StartProxy starts kube-proxy on a node. It may run concurrently for several nodes.
func (l *Lab) StartProxy(node string, mode ProxyMode) error {
	kubeconfig, err := l.kubeconfig("kube-proxy-"+node, "system:kube-proxy")
	if err != nil {
		return err
	}
	config := l.proxyConfig(node)
	if err := os.WriteFile(config, fmt.Appendf(nil, proxyConfig, mode, kubeconfig, node, proxyHealthz),
		0o600); err != nil {
		return err
	}
	p, err := l.Start(node, "kube-proxy-"+node, l.Kubernetes.tools, "kube-proxy", "--config", config)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Proxies[node] = p
	return nil
}

func (l *Lab) proxyConfig(node string) string {
	return filepath.Join(l.Dir(), "kube-proxy-"+node+".yaml")
}

func (l *Lab) awaitProxy(ctx context.Context, node string) error {
	return lab.Await(ctx, readyLimit, "kube-proxy on "+node, func() error {
		if p := l.Proxies[node]; !p.Alive() {
			return fmt.Errorf("it ended; see %s", filepath.Join(l.Dir(), "log", "kube-proxy-"+node+".log"))
		}
		return get(ctx, l.Namespace(node), proxyHealthz, "/healthz")
	})
}

// get returns nil if an HTTP server on a node answers with status 200.
func get(ctx context.Context, from *lab.Namespace, to netip.AddrPort, path string) error {
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return from.Dial(ctx, network, netip.AddrPort{}, to)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("http://%s%s: %s", to, path, resp.Status)
	}
	return nil
}

// StopProxies ends kube-proxy on all nodes and removes its rules.
func (l *Lab) StopProxies(ctx context.Context) error {
	var errs []error
	for node, p := range l.Proxies {
		errs = append(errs, p.Stop(syscall.SIGKILL, 10*time.Second))
		_, err := l.Namespace(node).Run(ctx, l.Kubernetes.tools, "kube-proxy", "--cleanup", "--config",
			l.proxyConfig(node))
		errs = append(errs, err)
		delete(l.Proxies, node)
	}
	return errors.Join(errs...)
}
