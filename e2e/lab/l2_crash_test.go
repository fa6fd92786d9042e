package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A crash stops a node's speaker and not its kernel.
type crash struct {
	name       string
	begin, end func(*Speaker) error
	lasts      time.Duration
}

var crashes = []crash{
	{"kill", (*Speaker).Kill, startAgain, 3 * time.Second},
	{"freeze", (*Speaker).Freeze, (*Speaker).Resume, 10 * time.Second},
}

// startAgain starts a speaker after a crash, as if it were the first one: each crash in ten minutes
// doubles the hold-down.
func startAgain(s *Speaker) error {
	return errors.Join(os.RemoveAll(filepath.Join(s.RunDir, "deaths.json")), s.Start())
}

// A speaker's crash is not a node's death: another node takes the address over, and all
// connections live on in the kernels where they began, also when the crashed speaker returns.
func TestL2CrashKeepsConnections(t *testing.T) {
	l := laboratoryL2(t)
	for _, policy := range policies {
		for _, c := range crashes {
			t.Run(policy.name+" "+c.name, func(t *testing.T) {
				vips := serveL2(t, l, pinnedTo(Service{Name: "web", Policy: policy.policy, Families: bothFamilies,
					Endpoints: At("p11", "p21", "p31")}, "n1"))
				awaitOwners(t, l, vips, "n1")
				k := keepConnections(t, l, vips)
				expectNoLossL2(t, l, vips, func() {
					k.open(30)
					began := time.Now()
					await(t, c.begin(l.Speaker("n1")))
					await(t, awaitTakeover(t, l, vips, "n2", "n3"))
					k.open(10)
					k.check("taken over")
					await(t, pause(t.Context(), time.Until(began.Add(c.lasts))))
					await(t, c.end(l.Speaker("n1")))
					awaitOwners(t, l, vips, "n1")
					k.check("taken back")
				})
			})
		}
	}
	for family, policy := range policies { // Cluster with IPv4, Local with IPv6
		for _, c := range crashes {
			t.Run("third owner, "+policy.name+" "+c.name, func(t *testing.T) {
				all := serveL2(t, l, pinnedTo(Service{Name: "web", Policy: policy.policy, Families: bothFamilies,
					Endpoints: At("p11", "p21", "p31")}, "n1"))
				vips := all[family : family+1]
				awaitOwners(t, l, vips, "n1")
				k := keepConnections(t, l, vips)
				k.open(30)
				await(t, c.begin(l.Speaker("n1")))
				second := k.awaitOwner("n2", "n3")
				k.open(30)
				k.check("the second owner")
				await(t, c.begin(l.Speaker(second)))
				third := k.awaitOwner(slices.DeleteFunc([]string{"n2", "n3"},
					func(n string) bool { return n == second })...)
				k.open(30)
				k.check("the third owner, " + third)
				await(t, errors.Join(c.end(l.Speaker("n1")), c.end(l.Speaker(second))))
				awaitOwners(t, l, vips, "n1")
				k.check("the first owner again")
			})
		}
	}
}

// policies are the traffic policies.
var policies = []struct {
	name   string
	policy corev1.ServiceExternalTrafficPolicy
}{{"Cluster", corev1.ServiceExternalTrafficPolicyCluster}, {"Local", localTraffic}}

// A keeper has connections that were opened at different times.
type keeper struct {
	t     *testing.T
	l     *Lab
	vips  []netip.Addr
	flows []*Flows
	began time.Time
}

func keepConnections(t *testing.T, l *Lab, vips []netip.Addr) *keeper {
	k := &keeper{t: t, l: l, vips: vips, began: time.Now()}
	t.Cleanup(func() {
		for _, f := range k.flows {
			f.Close()
		}
	})
	return k
}

// open opens connections to each address.
func (k *keeper) open(number int) {
	k.t.Helper()
	for _, vip := range k.vips {
		f, err := k.l.Host().OpenFlows(context.WithoutCancel(k.t.Context()), number, port(vip, 7))
		await(k.t, err)
		k.flows = append(k.flows, f)
	}
}

// check checks that all connections work.
func (k *keeper) check(when string) {
	k.t.Helper()
	for i, f := range k.flows {
		await(k.t, f.AwaitLines(k.t.Context(), 3))
		lost := 0
		for _, flow := range f.All {
			if err := flow.Err(); err != nil {
				if lost++; lost == 1 {
					k.t.Errorf("%s: a connection to %s, %s ended after %d lines, %s after the first: %v", when,
						k.vips[i%len(k.vips)], flow.Pod, flow.Exchanged(),
						flow.Ended().Sub(k.began).Round(time.Millisecond), err)
				}
			}
		}
		k.t.Logf("%s: %d of %d connections to %s lost", when, lost, len(f.All), k.vips[i%len(k.vips)])
	}
}

// awaitOwner waits until the host sends to one of the nodes, and returns which.
func (k *keeper) awaitOwner(nodes ...string) string {
	k.t.Helper()
	await(k.t, awaitTakeover(k.t, k.l, k.vips, nodes...))
	for _, node := range nodes {
		if sendsTo(k.l, k.vips[0], node) {
			return node
		}
	}
	k.t.Fatalf("none of %v is the owner", nodes)
	return ""
}

// sendsTo reports whether the host sends to a node.
func sendsTo(l *Lab, vip netip.Addr, node string) bool {
	n, err := l.Neighbour(vip)
	mac, errMAC := l.MAC(node)
	return errors.Join(err, errMAC) == nil && n.MAC == mac
}
