package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A shift is a Service and the pod behind it.
type podService struct{ name, pod string }

// shifts are count Services whose pods are 10.244.1.first and those after it.
func podServices(prefix string, first, count int) (all []podService) {
	for i := range count {
		all = append(all, podService{fmt.Sprintf("%s%d", prefix, i+1), fmt.Sprintf("10.244.1.%d", first+i)})
	}
	return all
}

func manifest(all []podService) string {
	var docs []string
	for _, s := range all {
		docs = append(docs, oneService(s.name, s.pod))
	}
	return strings.Join(docs, "---")
}

// poolOf is the AddressPool with n addresses from 192.0.2.1 on.
func poolOf(n int) string {
	return fmt.Sprintf(`
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.1-192.0.2.%d]}
`, n)
}

// An API server comes back with an etcd from before some Services were deleted,
// and others got their addresses. Services that exist again have the addresses that
// they had, at every instant; Services that are created again get others; what the
// kernel forwards follows; controller and speaker live through it. The pool is
// so small that a Service that requests an address gets one that another Service had.
//
// In the first round the controller has to wait for its Lease, which names a process
// that is gone. In the second it needs no Lease, and both programs
// stand still, in the middle of their work, while all that happens: they go on
// with what they knew.
func TestRestoreFromOlderEtcdKeepsAddresses(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.pods("192.0.2.0/24")
		first := f.run("controller", "--leader-elect")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+poolOf(12)))
		old := podServices("s", 11, 10)
		must(t, f.Admin().Apply(t.Context(), manifest(old)))
		f.awaitServing(old)
		addressesOf := f.addressesOf(old)
		backup := filepath.Join(t.TempDir(), "etcd")
		must(t, f.Backup(t.Context(), backup))
		first.stop()

		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("frozen=%t", frozen), func(t *testing.T) {
				f := f.withT(t)
				controller := f.run("controller", fmt.Sprintf("--leader-elect=%t", !frozen))
				f.reassignAddresses(old)
				f.burst(func() {
					if frozen {
						controller.freeze()
						speaker.freeze()
					}
					must(t, f.Restore(t.Context(), backup))
				})
				began := time.Now()
				h := f.recordHistory(t)
				young := podServices("n", 31, 5)
				must(t, f.Admin().Apply(t.Context(), manifest(young)))
				if frozen {
					controller.resume()
					speaker.resume()
				}
				f.awaitServing(old)
				must(t, f.Admin().Apply(t.Context(), poolOf(20))) // so that there is one for each
				f.awaitServing(young)
				f.awaitRemoved("m")
				t.Logf("%s from the API server's return until all was as wanted", time.Since(began).Round(time.Millisecond))
				if now := f.addressesOf(old); !maps.Equal(now, addressesOf) {
					t.Errorf("Services had %v and have %v", addressesOf, now)
				}
				t.Logf("%d events checked", h.check(qualified(addressesOf)))
				must(t, errors.Join(controller.alive(), speaker.alive()))
			})
		}
	})
}

// in is f for a subtest.
func (f *fanfare) withT(t *testing.T) *fanfare {
	g := *f
	g.T = t
	return &g
}

// succeed deletes some of the old Services, gives others their addresses, and
// creates one of the old again, which has then another.
func (f *fanfare) reassignAddresses(old []podService) {
	f.Helper()
	f.awaitServing(old)
	gone := []podService{old[1], old[2], old[4], old[6]}
	before := f.addressesOf(gone)
	must(f.T, f.Admin().Delete(f.Context(), manifest(append(podServices("n", 31, 5), gone...))))
	must(f.T, f.Admin().Apply(f.Context(), poolOf(12)))
	await(f.T, 60*time.Second, "the claims' release", func() error {
		claims, err := f.Admin().List(f.Context(), kindOf("AddressClaim"))
		if err == nil && len(claims) != len(old)-len(gone) {
			err = fmt.Errorf("%d claims are left", len(claims))
		}
		return err
	})
	successors := podServices("n", 51, 5)
	must(f.T, f.Admin().Apply(f.Context(), manifest(successors)))
	f.awaitServing(successors)
	again := []podService{{old[2].name, "10.244.1.60"}}
	must(f.T, f.Admin().Apply(f.Context(), manifest(again)))
	f.awaitServing(again)
	inherited := 0
	for _, addr := range f.addressesOf(successors) {
		if slices.Contains(slices.Collect(maps.Values(before)), addr) {
			inherited++
		}
	}
	if inherited < 3 {
		f.Fatalf("%d addresses have other Services than before; the test wants 3 at least", inherited)
	}
}

// burst calls f while Services are created, some of which have got addresses
// and some of which have not.
func (f *fanfare) burst(during func()) {
	f.Helper()
	must(f.T, f.Admin().Apply(f.Context(), poolOf(200)))
	ctx, stop := context.WithCancel(f.Context())
	defer stop()
	var done sync.WaitGroup
	done.Go(func() {
		for i := 0; ctx.Err() == nil && i < 150; i++ {
			// Whatever comes of it: the API server is about to go.
			_ = f.Admin().Apply(ctx, oneService(fmt.Sprintf("m%d", i), "10.244.1.70"))
		}
	})
	await(f.T, 60*time.Second, "the burst's addresses", func() error {
		if n := len(f.addressesByPrefix("m")); n < 20 {
			return fmt.Errorf("%d have one", n)
		}
		return nil
	})
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop(); done.Wait() }()
	during()
	<-stopped
}

// prefixed are the addresses of Services whose names begin so.
func (f *fanfare) addressesByPrefix(prefix string) map[string]string {
	f.Helper()
	all, err := f.Admin().List(f.Context(), serviceKind)
	must(f.T, err)
	addressesOf := map[string]string{}
	for i := range all {
		if a := addresses(&all[i]); len(a) != 0 && strings.HasPrefix(all[i].GetName(), prefix) {
			addressesOf[all[i].GetName()] = a[0]
		}
	}
	return addressesOf
}

// held are the addresses of Services that have one.
func (f *fanfare) addressesOf(services []podService) map[string]string {
	f.Helper()
	all := f.addressesByPrefix("")
	maps.DeleteFunc(all, func(name, _ string) bool {
		return !slices.ContainsFunc(services, func(s podService) bool { return s.name == name })
	})
	return all
}

// serve waits until each Service has an address at which its pod answers.
func (f *fanfare) awaitServing(services []podService) {
	f.Helper()
	await(f.T, 120*time.Second, "an answer at every Service's address", func() error {
		addressesOf := f.addressesOf(services)
		for _, s := range services {
			if addressesOf[s.name] == "" {
				return fmt.Errorf("%s has no address", s.name)
			}
			if err := answers(addressesOf[s.name], s.pod); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	})
}

// forgets waits until the node forwards no address but those of Services that
// there are.
func (f *fanfare) awaitRemoved(prefix string) {
	f.Helper()
	await(f.T, 60*time.Second, "the end of what is no more", func() error {
		if n := len(f.addressesByPrefix(prefix)); n != 0 {
			f.Fatalf("%d Services %s… came back", n, prefix)
		}
		s, err := f.status()
		if err != nil {
			return err
		}
		if have, want := len(s.Addresses), len(f.addressesByPrefix("")); have != want {
			return fmt.Errorf("%d addresses are forwarded, of %d", have, want)
		}
		return nil
	})
}

// qualified has the names with their namespace.
func qualified(addressesOf map[string]string) map[string]string {
	out := map[string]string{}
	for name, addr := range addressesOf {
		out["default/"+name] = addr
	}
	return out
}
