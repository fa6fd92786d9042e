package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// The controller creates the membership key. A speaker renews its Lease, marks a silent
// node dead, and then alive while that node's Lease is renewed. The accounts' rights
// suffice for that.
func TestLeaseKeepsSilentNodeAlive(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		const others = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\nstatus: {addresses: [{type: " +
			"InternalIP, address: 127.0.0.2}]}\n" +
			"---\napiVersion: v1\nkind: Node\nmetadata: {name: n3}\nstatus: {addresses: [{type: InternalIP, " +
			"address: 127.0.0.3}]}\n"
		must(t, f.Admin().Apply(t.Context(), oneNode+others))
		f.run("controller", "--members-secret=fanfare-members")
		keys := filepath.Join(f.dir, "keys")
		await(t, 60*time.Second, "the key", func() error {
			secrets, err := f.Admin().List(t.Context(), corev1.SchemeGroupVersion.WithKind("Secret"))
			for _, s := range secrets {
				if s.GetName() == "fanfare-members" && s.GetNamespace() == "fanfare-system" {
					encoded, _, _ := unstructured.NestedString(s.Object, "data", "keys")
					key, err := base64.StdEncoding.DecodeString(encoded)
					return errors.Join(err, os.WriteFile(keys, key, 0o600))
				}
			}
			return errors.Join(err, errors.New("there is no Secret"))
		})

		nodes := []gossip.Node{{Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
			{Name: "n2", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.2")}},
			{Name: "n3", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.3")}}}
		startMember := func(name string) (stopMember func()) {
			g := gossip.New(gossip.Options{Node: name, Port: 7874, KeyFile: keys, Log: slog.New(slog.DiscardHandler)})
			g.Set(nodes)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { g.Run(ctx); close(done) }()
			return func() { cancel(); <-done }
		}
		speaker := f.speaker("--members-key-file="+keys, "--lease-interval=1s", "--log-level=debug")
		stopMember := startMember("n2")
		t.Cleanup(startMember("n3"))
		awaitState := func(state string) {
			t.Helper()
			await(t, 60*time.Second, "n2 is "+state, func() error { return f.member("n2", state) })
		}
		awaitState("alive")
		stopMember()
		awaitState("dead")

		lease := func(name string) (*unstructured.Unstructured, error) {
			all, err := f.Admin().List(t.Context(), coordinationv1.SchemeGroupVersion.WithKind("Lease"))
			for i := range all {
				if all[i].GetName() == name {
					return &all[i], err
				}
			}
			return nil, errors.Join(err, fmt.Errorf("there is no Lease %s", name))
		}
		await(t, 60*time.Second, "n1's own Lease", func() error {
			l, err := lease("n1")
			if err == nil && (len(l.GetOwnerReferences()) != 1 || l.GetOwnerReferences()[0].Kind != "Node") {
				err = fmt.Errorf("it belongs to %v", l.GetOwnerReferences())
			}
			return err
		})
		renewals := 0
		renew := func() {
			renewals++
			must(t, f.Admin().Apply(t.Context(), fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-node-lease, name: n2, labels: {fanfare.io/node-hash: 8b37e07b558d9d9}},
				spec: {holderIdentity: n2, renewTime: "2026-01-01T00:00:%02d.000000Z"}}`, renewals%60)))
		}
		await(t, 60*time.Second, "n2 alive by its Lease", func() error {
			renew()
			return f.member("n2", "lease")
		})
		awaitState("dead") // three intervals after the last renewal
		if speaker.logged("forbidden") {
			t.Errorf("something is forbidden:\n%s", speaker.tail())
		}
	})
}

// member returns an error unless the speaker shows a node in the given state.
func (f *fanfare) member(node, state string) error {
	out, err := exec.CommandContext(f.Context(), f.binary, "status", "--json", "--run-dir", f.runDir()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var s struct {
		Members struct {
			Nodes    []struct{ Node, State string }
			Problems []string
		}
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return err
	}
	for _, m := range s.Members.Nodes {
		if m.Node == node && m.State == state {
			return nil
		}
	}
	return fmt.Errorf("the speaker shows %+v", s.Members)
}
