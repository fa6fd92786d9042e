package kubelet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/conformance"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var (
	all     = flag.Bool("all", false, "run Kubernetes' own tests in all set-ups, not only a few of them")
	wanted  = flag.String("tests", "", "run the tests whose names match this regular expression")
	folder  = flag.String("pages", "", "add the results to those in this folder, and write their page")
	reports = flag.String("reports", "", "keep e2e.test's reports and logs in this folder, which exists")
)

// link is a pool of addresses on the nodes' own segment, for all Services.
const link = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: link}
spec: {announce: Advertised, addresses: [198.51.100.200-198.51.100.240]}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: link}
spec: {pools: [link], interfaces: [eth1]}
`

// Kubernetes' own tests pass in each set-up. Without -all and without a set-up in -run, those run that take seconds, on
// the shared cluster.
func TestConformance(t *testing.T) {
	if !*all && !strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		c := kubelets(t)
		client, err := c.prepareTests(t, conformancePrograms(t))
		must(t, err)
		runLane(t, client, conformance.Setups[0], conformance.Quick())
		return
	}
	if err := missing(); err != nil {
		nstest.Missing(t, err.Error())
	}
	tests, err := regexp.Compile(*wanted)
	must(t, err)
	tools, err := kube.Tools(t.Context(), true)
	must(t, err)
	programs := conformancePrograms(t)
	source := conformance.Source{
		Root: "../..", Fanfare: "../../bin/fanfare", Tools: tools, Commit: measure.Commit(t.Context(), "../.."),
	}
	for _, s := range conformance.Setups {
		lanes := conformance.Lanes(s, tests)
		t.Run(s.Name, func(t *testing.T) {
			results := runSetup(t, s, lanes, tools, programs)
			if *folder != "" {
				must(t, conformance.Save(t.Context(), source, *folder, results))
			}
		})
	}
}

// conformancePrograms returns the folder of e2e.test, whose tests are those of the table.
func conformancePrograms(t *testing.T) string {
	t.Helper()
	programs, err := kube.Conformance(t.Context())
	must(t, err)
	list, err := conformance.Client{Programs: programs}.Tests(t.Context())
	must(t, err)
	if added, gone := conformance.Unknown(list); len(added)+len(gone) > 0 {
		t.Fatalf("e2e/conformance/tests.go lacks these tests of e2e.test:\n%s\nand has these, which do not exist:\n%s",
			strings.Join(added, "\n"), strings.Join(gone, "\n"))
	}
	return programs
}

// runSetup builds a cluster, runs all lanes at once, and takes the cluster down.
func runSetup(t *testing.T, s conformance.Setup, lanes []conformance.Lane, tools,
	programs string) (all []conformance.Result) {
	// Names of interfaces and namespaces are short.
	c, err := upCluster(t.Context(), options{fmt.Sprintf("c%d", os.Getpid()), lab.NodeNames, s.KubeProxy}, tools)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.diagnostics())
		}
		must(t, c.down(context.Background()))
	})
	must(t, err)
	must(t, c.installFor(t.Context(), s))
	client, err := c.prepareTests(t, programs)
	must(t, err)
	var mu sync.Mutex
	t.Run("lanes", func(t *testing.T) {
		for _, l := range lanes {
			t.Run(l.Name, func(t *testing.T) {
				t.Parallel()
				results := runLane(t, client, s, l)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, results...)
			})
		}
	})
	// The observer sees elements of nftables, and no sets of ipset.
	if v := c.Observer.Verdict(c.SendDelay()); s.Proxy == "nftables" && len(v.Violations) > 0 {
		t.Errorf("an address was announced that was not forwarded:\n%s", v)
	}
	return all
}

func runLane(t *testing.T, client conformance.Client, s conformance.Setup, l conformance.Lane) []conformance.Result {
	dir := filepath.Join(t.TempDir(), l.Name)
	if *reports != "" {
		dir = filepath.Join(*reports, s.Name, l.Name)
	}
	results, err := client.Run(t.Context(), l, dir)
	must(t, err)
	for i := range results {
		r := &results[i]
		r.Setup, r.Measured = s.Name, time.Now().UTC().Truncate(time.Second)
		t.Logf("%-7s %5s  %s", r.Outcome, r.Took, r.Title())
		if r.Outcome != conformance.Passed {
			t.Errorf("%s: %s", r.Title(), r.Message)
		}
	}
	return results
}

// prepareTests gives a cluster what Kubernetes' own tests need, until the test ends.
func (c *cluster) prepareTests(t *testing.T, programs string) (conformance.Client, error) {
	ctx := t.Context()
	c.linkTools(t)
	client := conformance.Client{
		Host: c.Namespace("client"), Kubeconfig: c.kubeconfig, Kubectl: filepath.Join(c.bin(), "kubectl"),
		Nodes: len(c.nodes), Programs: programs,
	}
	names, err := client.Images(ctx)
	if err != nil {
		return client, err
	}
	archive := filepath.Join(c.Dir(), "agnhost.tar")
	if err := writeAgnhost(ctx, archive, filepath.Join(programs, "agnhost"), names); err != nil {
		return client, err
	}
	for _, n := range c.nodes {
		if err := c.kubeNodes[n].load(ctx, archive); err != nil {
			return client, err
		}
	}
	return client, errors.Join(c.serveNames(t), c.linkClient(t))
}

// linkClient gives the client, which reaches addresses and nodes by the router, a link of its own to
// the API server.
func (c *cluster) linkClient(t *testing.T) error {
	host, cp := c.Namespace("client"), c.Namespace(controlPlane)
	t.Cleanup(func() {
		_, err := host.Run(context.Background(), "ip", "link", "del", "mgmt")
		must(t, err)
	})
	for _, command := range []string{
		"ip link add mgmt type veth peer name client netns " + cp.Name, "ip addr add 172.31.0.100/24 dev mgmt",
		"ip link set mgmt up",
	} {
		if _, err := host.Run(t.Context(), strings.Fields(command)...); err != nil {
			return err
		}
	}
	_, err := cp.Run(t.Context(), "ip", "link", "set", "client", "master", "br0", "up")
	return err
}

// installFor installs Fanfare as a set-up wants it.
func (c *cluster) installFor(ctx context.Context, s conformance.Setup) error {
	mode := fmt.Sprintf(`[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--proxy-mode=%s"}]`, s.Proxy)
	commands := slices.Insert(slices.Clone(installation), 1,
		[]string{"-n", "fanfare-system", "patch", "daemonset/speaker", "--type=json", "-p", mode})
	if s.L2 {
		if err := c.kubectlEach(ctx, commands...); err != nil {
			return err
		}
		return c.Kubernetes.Admin().Apply(ctx, link)
	}
	return c.kubectlEach(ctx, append(commands, routed)...)
}
