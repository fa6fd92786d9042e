package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A Cluster is a running control plane.
type Cluster struct {
	Etcd, APIServer, ControllerManager *Process
	Scheduler                          *Process // nil without kubelets

	more       []*Process // API servers beside APIServer
	tools, dir string
	namespace  *lab.Namespace // nil: this process's own namespace
	kubelets   bool           // set by WithKubelets
	flags      []string       // additional flags of the API server
	pki        *pki
	addr       netip.Addr // of the API server
	ports      [3]int     // of the API server, and of etcd for clients and peers
	admin      *Client
}

// An Option configures a control plane.
type Option func(*Cluster)

// AuditLog has the API server append to a log about its requests, one line of JSON for each, as an
// audit policy says. The API server writes a line before it answers.
func AuditLog(policy, log string) Option {
	return func(c *Cluster) {
		c.flags = append(c.flags, "--audit-policy-file="+policy, "--audit-log-path="+log, "--audit-log-mode=blocking")
	}
}

// readyLimit bounds waits for a program of Kubernetes, which take some three seconds on two idle cores. It is long
// because hack/idle.sh gives the tests of the benchmarks only the time that others leave. The wait for a process that
// ends fails at once.
const readyLimit = 10 * time.Minute

// StartIn starts a control plane at addr, in a network namespace or, without one, at a loopback
// address, and returns when it is ready, after some three seconds. Its files are in dir, which
// must be empty or not exist. The caller must Stop it, also after an error.
func StartIn(ctx context.Context, namespace *lab.Namespace, tools, dir string, addr netip.Addr,
	options ...Option) (*Cluster, error) {
	c := &Cluster{tools: tools, dir: dir, namespace: namespace, addr: addr}
	for _, o := range options {
		o(c)
	}
	if err := c.prepare(); err != nil {
		return c, fmt.Errorf("control plane: %w", err)
	}
	if err := c.StartEtcd(); err != nil {
		return c, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return c, err
	}
	if err := c.startControllerManager(); err != nil || !c.kubelets {
		return c, err
	}
	return c, c.startScheduler()
}

// prepare writes the files of the control plane.
func (c *Cluster) prepare() (err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if c.pki, err = newPKI(); err != nil {
		return err
	}
	// The service accounts' key needs no certificate, but user makes one.
	serviceAccounts, err := c.pki.user("service-accounts")
	if err != nil {
		return err
	}
	kubeletClient, err := c.pki.user("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	server, err := c.pki.server("kube-apiserver", c.addr, netip.MustParseAddr("127.0.0.1"),
		netip.MustParseAddr("10.96.0.1"))
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(c.path("ca.crt"), c.pki.ca, 0o644),
		serviceAccounts.write(c.dir, "sa"),
		server.write(c.dir, "server"),
		kubeletClient.write(c.dir, "kubelet-client"),
	)
	if err != nil {
		return err
	}
	return c.inNamespace(c.choosePorts)
}

// inNamespace calls f in the control plane's namespace.
func (c *Cluster) inNamespace(f func() error) error {
	if c.namespace == nil {
		return f()
	}
	return c.namespace.Do(f)
}

// dial connects to the API server from its namespace.
func (c *Cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return c.namespace.Dial(ctx, network, netip.AddrPort{}, to)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// choosePorts finds free ports. All listeners stay open meanwhile, so that the ports
// differ. Another process may still take a port before its use, which then fails.
func (c *Cluster) choosePorts() error {
	for i := range c.ports {
		l, err := net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0).String())
		if err != nil {
			return err
		}
		defer l.Close()
		c.ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

// freePort returns a port of loopback that is free now.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (c *Cluster) etcdURL(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// StartEtcd starts etcd with its existing data.
func (c *Cluster) StartEtcd() (err error) {
	client, peer := c.etcdURL(c.ports[1]), c.etcdURL(c.ports[2])
	c.Etcd, err = c.start("etcd", "--name=e", "--data-dir="+c.path("etcd"), "--listen-client-urls="+client,
		"--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=e="+peer,
		"--unsafe-no-fsync", "--log-level=warn")
	return err
}

// StartAPIServer starts kube-apiserver and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	if c.APIServer, err = c.startAPIServer(c.ports[0]); err != nil {
		return err
	}
	if c.admin == nil {
		cfg, err := c.Config("admin", "system:masters")
		if err != nil {
			return err
		}
		if c.admin, err = NewClient(cfg); err != nil {
			return err
		}
	}
	return c.APIServer.ready(ctx, readyLimit, c.admin.ready)
}

// AddAPIServer starts one more kube-apiserver with the same etcd, as in a control plane of several nodes. It
// returns the process and a client of it when it is ready. All API servers append to one log.
func (c *Cluster) AddAPIServer(ctx context.Context) (*Process, *Client, error) {
	var port int
	if err := c.inNamespace(func() (err error) { port, err = freePort(); return err }); err != nil {
		return nil, nil, err
	}
	config := rest.CopyConfig(c.admin.config)
	config.Host = "https://" + netip.AddrPortFrom(c.addr, uint16(port)).String()
	client, err := NewClient(config)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.startAPIServer(port)
	if err != nil {
		return nil, nil, err
	}
	c.more = append(c.more, p)
	return p, client, p.ready(ctx, readyLimit, client.ready)
}

// startAPIServer starts kube-apiserver at a port.
func (c *Cluster) startAPIServer(port int) (*Process, error) {
	args := []string{
		"--etcd-servers=" + c.etcdURL(c.ports[1]),
		"--bind-address=" + c.addr.String(), "--advertise-address=" + c.addr.String(),
		"--secure-port=" + strconv.Itoa(port), "--tls-cert-file=" + c.path("server.crt"),
		"--tls-private-key-file=" + c.path("server.key"), "--client-ca-file=" + c.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.path("sa.key"),
		"--service-account-signing-key-file=" + c.path("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--authorization-mode=Node,RBAC", "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
	}
	return c.start("kube-apiserver", append(append(args, c.admission()...), c.flags...)...)
}

func (c *Cluster) startControllerManager() error {
	kubeconfig := c.path("controller-manager.kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, "system:kube-controller-manager", "system:masters"); err != nil {
		return err
	}
	args := append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--cluster-name=e2e"}, c.controllers()...)
	var err error
	c.ControllerManager, err = c.start("kube-controller-manager", args...)
	return err
}

// Stop ends all processes and removes their files.
func (c *Cluster) Stop() error {
	for _, p := range append(c.more, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd) {
		p.Kill()
	}
	return os.RemoveAll(c.dir)
}

// Logs returns the paths of the processes' logs.
func (c *Cluster) Logs() []string {
	logs, _ := filepath.Glob(c.path("*.log")) // The pattern is valid.
	slices.Sort(logs)
	return logs
}

// Addr returns the address of the API server.
func (c *Cluster) Addr() netip.Addr { return c.addr }

// Host returns the URL of the API server.
func (c *Cluster) Host() string {
	return "https://" + netip.AddrPortFrom(c.addr, uint16(c.ports[0])).String()
}

// Config returns the client configuration of a user. Groups decide the rights:
// system:masters may do anything.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	cert, err := c.pki.user(user, groups...)
	if err != nil {
		return nil, err
	}
	config := &rest.Config{
		Host: c.Host(),
		// The client's own rate limit must not slow tests down.
		QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.pki.ca, CertData: cert.cert, KeyData: cert.key,
		},
	}
	if c.namespace != nil {
		config.Dial = c.dial
	}
	return config, nil
}

// WriteKubeconfig writes the same configuration to a file for another process.
func (c *Cluster) WriteKubeconfig(path, user string, groups ...string) error {
	return c.writeKubeconfig(path, user, func(*clientcmdapi.AuthInfo) {}, groups...)
}

func (c *Cluster) writeKubeconfig(path, user string, change func(*clientcmdapi.AuthInfo), groups ...string) error {
	cert, err := c.pki.user(user, groups...)
	if err != nil {
		return err
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["e2e"] = &clientcmdapi.Cluster{Server: c.Host(), CertificateAuthorityData: c.pki.ca}
	k.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert.cert, ClientKeyData: cert.key}
	change(k.AuthInfos[user])
	k.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: user}
	k.CurrentContext = "e2e"
	return clientcmd.WriteToFile(*k, path)
}

// SpeakerConfig returns the configuration of a node's speaker: the admin impersonates
// the user of a token that is bound to the speaker's pod.
func (c *Cluster) SpeakerConfig(node string) *rest.Config {
	config := rest.CopyConfig(c.admin.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: speakerAccount, Extra: extraOf(node)}
	return config
}

// WriteSpeakerKubeconfig writes the same configuration to a file for another process.
func (c *Cluster) WriteSpeakerKubeconfig(path, node string) error {
	return c.writeKubeconfig(path, "admin", func(a *clientcmdapi.AuthInfo) {
		a.Impersonate, a.ImpersonateUserExtra = speakerAccount, extraOf(node)
	}, "system:masters")
}

const speakerAccount = "system:serviceaccount:fanfare-system:speaker"

// extraOf returns what the API server adds to the user of a token that is bound to a pod
// (KEP-4193).
func extraOf(node string) map[string][]string {
	return map[string][]string{"authentication.kubernetes.io/node-name": {node}}
}

// Admin returns a client that may do anything.
func (c *Cluster) Admin() *Client { return c.admin }

// Backup copies etcd's data at one moment to dir: it kills etcd and starts it again, with
// the API server.
func (c *Cluster) Backup(ctx context.Context, dir string) error {
	return c.withoutEtcd(ctx, func() error { return os.CopyFS(dir, os.DirFS(c.path("etcd"))) })
}

// Restore replaces etcd's data by a backup. It restarts the controller manager, as
// Kubernetes' documentation says, because its watches would wait for future versions.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	c.ControllerManager.Kill()
	err := c.withoutEtcd(ctx, func() error {
		if err := os.RemoveAll(c.path("etcd")); err != nil {
			return err
		}
		return os.CopyFS(c.path("etcd"), os.DirFS(dir))
	})
	if err != nil {
		return err
	}
	return c.startControllerManager()
}

func (c *Cluster) withoutEtcd(ctx context.Context, f func() error) error {
	c.APIServer.Kill()
	c.Etcd.Kill()
	if err := f(); err != nil {
		return fmt.Errorf("etcd's data: %w", err)
	}
	if err := c.StartEtcd(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}
