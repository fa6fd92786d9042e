package lab

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bpffs mounts a BPF file system for the duration of a test.
func bpffs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	await(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { await(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// restart restarts a node's speaker with additional flags, as an upgrade does.
func restart(t *testing.T, l *Lab, node string, flags ...string) {
	t.Helper()
	s := l.Speaker(node)
	await(t, s.Terminate())
	s.Flags = flags
	await(t, l.StartSpeakers(context.WithoutCancel(t.Context()), node))
}

// Connections on the fast path show pods the client's address and have no conntrack entry.
// Pods are added, drained and removed, the speaker is killed meanwhile, and no request is
// lost. A speaker without the flag removes the fast path, and the rules take over.
func TestFastPathKeepsConnections(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	dir := filepath.Join(bpffs(t), "fanfare")
	fast := []string{"--fast-path", "--fast-path-dir", dir}
	t.Cleanup(func() { restart(t, l, "n1") })
	restart(t, l, "n1", fast...)
	svc := Service{Name: "quick", Policy: localTraffic, Endpoints: At("p11")}
	vip := serve(t, l, svc, "n1")
	awaitFastPath := func() {
		t.Helper()
		await(t, Await(ctx, Settle, "all three frontends on the fast path", func() error {
			text, err := l.Speaker("n1").StatusText(ctx)
			if err == nil && !strings.Contains(text, "Fast path on eth1, bypassing netfilter: 3 of 3 frontends") {
				err = errors.New(text)
			}
			return err
		}))
	}
	awaitFastPath()
	expectAnswer := func(pod string, tracked bool) {
		t.Helper()
		a, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80))
		if err != nil || a.Pod != pod || a.Saw != a.From {
			t.Fatalf("%v: %+v; want %s, which sees the client", err, a, pod)
		}
		u, err := l.Client.AskUDP(ctx, netip.AddrPort{}, port(vip, 7))
		if err != nil || u.Pod != pod || u.Saw != u.From {
			t.Errorf("%v: %+v; want %s, which sees the client", err, u, pod)
		}
		entries, err := l.namespaces["n1"].conntrack(vip)
		await(t, err)
		of := map[uint16]bool{}
		for _, e := range entries {
			of[e.Forward.SrcPort] = true
		}
		if of[a.From.Port()] != tracked || of[u.From.Port()] != tracked {
			t.Errorf("in conntrack: %v and %v; want %v", of[a.From.Port()], of[u.From.Port()], tracked)
		}
	}
	expectAnswer("p11", false)

	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	put := func(endpoints ...Endpoint) {
		t.Helper()
		svc.Endpoints = endpoints
		await(t, errors.Join(l.Cluster.Put(svc), pause(ctx, 300*time.Millisecond)))
		awaitFastPath()
	}
	put(At("p11", "p12")...)
	flows, err := l.Client.OpenFlows(ctx, 20, port(vip, 7))
	await(t, err)
	defer flows.Close()
	put(Endpoint{"p11", Terminating}, Endpoint{Pod: "p12"})
	expectAnswer("p12", false)
	await(t, l.Speaker("n1").Kill())
	await(t, flows.AwaitLines(ctx, 5))
	expectAnswer("p12", false)
	await(t, l.StartSpeakers(ctx, "n1"))
	awaitFastPath()
	await(t, flows.AwaitLines(ctx, 5))
	for _, f := range flows.All {
		if err := f.Err(); err != nil {
			t.Errorf("a connection to %s: %v", f.Pod, err)
		}
	}
	put(At("p12")...)
	await(t, Await(ctx, Settle, "the end of the connections to p11", func() error {
		for _, f := range flows.All {
			if ended := f.Err() != nil; ended != (f.Pod == "p11") {
				return errors.New("a connection to " + f.Pod + " is in the wrong state")
			}
		}
		return nil
	}))
	if !slices.ContainsFunc(flows.All, func(f *Flow) bool { return f.Pod == "p11" }) {
		t.Error("no connection was to p11")
	}
	expectNoLoss(t, l, load, began)

	began = time.Now()
	restart(t, l, "n1", "--fast-path-dir", dir)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v; want nothing there", dir, err)
	}
	expectAnswer("p12", true)
	t.Logf("without the fast path after %s", ms(time.Since(began)))
}
