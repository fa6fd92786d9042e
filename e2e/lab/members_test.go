package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A node without a link, or with a frozen speaker, gets no new connections from other
// nodes, long before Kubernetes marks it NotReady. It gets them again when it is back.
func TestMembersSilentNodeLeftOut(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	enableMembership(t, l)
	// Connections enter on the other nodes alone: how fast a router detects a dead node
	// depends on BFD.
	excludeNode(t, l, "n3")
	vip := serve(t, l, Service{Name: "far", Endpoints: At("p11", "p21", "p31")}, "n1", "n2")
	only := serve(t, l, Service{Name: "only", Endpoints: At("p31")}, "n1", "n2")

	port3 := func(command ...string) {
		t.Helper()
		_, err := l.Namespace("tor1").Run(context.WithoutCancel(ctx),
			append([]string{"ip", "link", "set", "eth3"}, command...)...)
		await(t, err)
	}
	cut := func() { port3("nomaster") }
	reattach := func() { port3("master", "br0") }
	for _, how := range []struct {
		what      string
		off, on   func()
		reachable bool // its pods answer all the time
	}{
		{"link down", cut, reattach, false},
		{"speaker frozen", func() {
			await(t, l.Speaker("n3").Freeze())
		}, func() { await(t, l.Speaker("n3").Resume()) }, true},
	} {
		load := l.Client.StartLimitedLoad(ctx, port(vip, 80))
		await(t, pause(ctx, 500*time.Millisecond))
		began := time.Now()
		t.Cleanup(how.on)
		how.off()
		await(t, l.awaitMembers(ctx, "n3", "dead", "n1", "n2"))
		detected := time.Now()
		if how.reachable {
			// A Service without another endpoint keeps this one.
			if a := requests(t, l, 20, port(only, 80)); a["p31"] != 20 {
				t.Errorf("%s: %s was answered by %v", how.what, only, a)
			}
		}
		await(t, pause(ctx, time.Second))
		report := load.Stop()
		lost, late := 0, 0
		for _, loss := range report.Lost {
			lost++
			if loss.Begin.After(detected) {
				late++
			}
		}
		t.Logf("%s: both other nodes left it out after %s; %d of %d requests lost and %d slow; longest %s",
			how.what, detected.Sub(began).Round(time.Millisecond), lost, report.Sent, report.Slow,
			report.Longest.Round(time.Millisecond))
		if late > 0 {
			t.Errorf("%s: %d requests were lost that began after the detection:\n%s", how.what, late,
				report.Losses(detected))
		}
		if how.reachable && lost > 0 {
			t.Errorf("%s: %d requests were lost although the pods answer:\n%s", how.what, lost, report.Losses(began))
		}
		began = time.Now()
		how.on()
		await(t, l.awaitMembers(ctx, "n3", "alive", NodeNames...))
		t.Logf("%s: it was back after %s", how.what, time.Since(began).Round(time.Millisecond))
		await(t, Await(ctx, Settle, "an answer of p31", func() error {
			if a := requests(t, l, 20, port(vip, 80)); a["p31"] == 0 {
				return fmt.Errorf("answered by %v", a)
			}
			return nil
		}))
	}
}

// enableMembership restarts all speakers with a membership key for the duration of a test.
func enableMembership(t *testing.T, l *Lab) {
	t.Helper()
	key := filepath.Join(l.Dir(), "members-key")
	await(t, os.WriteFile(key, []byte("the-key-of-the-laboratory\n"), 0o600))
	restart := func(ctx context.Context, flags ...string) {
		for _, n := range NodeNames {
			await(t, l.Speaker(n).Terminate())
			l.Speaker(n).Flags = flags
		}
		await(t, l.StartSpeakers(ctx, NodeNames...))
	}
	t.Cleanup(func() { restart(context.WithoutCancel(t.Context())) })
	restart(t.Context(), "--members-key-file", key)
	for _, n := range NodeNames {
		await(t, l.awaitMembers(t.Context(), n, "alive", NodeNames...))
	}
}

// excludeNode makes a node announce nothing for the duration of a test.
func excludeNode(t *testing.T, l *Lab, node string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.Objects, "nodes.yaml"))
	await(t, err)
	label := "    kubernetes.io/hostname: " + node + "\n"
	excluded := strings.Replace(string(text), label,
		label+"    node.kubernetes.io/exclude-from-external-load-balancers: \"\"\n", 1)
	if excluded == string(text) {
		t.Fatalf("no node %s in nodes.yaml", node)
	}
	t.Cleanup(func() { await(t, l.Cluster.PutText("nodes", string(text))) })
	await(t, l.Cluster.PutText("nodes", excluded))
}

// awaitMembers waits until the speakers agree on the state of a node, and leave out its
// endpoints if it is dead.
func (l *Lab) awaitMembers(ctx context.Context, node, state string, speakers ...string) error {
	return Await(ctx, Settle, fmt.Sprintf("state of %s to be %s on %v", node, state, speakers), func() error {
		for _, n := range speakers {
			st, err := l.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(st.Members.Nodes, func(m struct{ Node, State string }) bool { return m.Node == node })
			if i < 0 || st.Members.Nodes[i].State != state ||
				(state == "dead") != slices.Contains(st.Members.LeftOut, node) {
				return fmt.Errorf("%s shows %+v", n, st.Members)
			}
		}
		return nil
	})
}
