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

// A podService is a Service with one pod.
type podService struct{ name, pod string }

// podServices returns count Services with the pods 10.244.1.first and following.
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

// poolOf returns the AddressPool with n addresses from 192.0.2.1 on.
func poolOf(n int) string {
	return fmt.Sprintf(`
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.1-192.0.2.%d]}
`, n)
}

// The API server returns with an older etcd: meanwhile some Services were deleted and
// others got their addresses. Existing Services keep their addresses at every moment,
// Services that are created again get other addresses, the kernel follows, and controller
// and speaker survive. The pool is so small that new Services get addresses of deleted
// ones.
//
// In the first round the controller has to wait for its Lease, whose holder no longer runs.
// In the second it needs no Lease, and both programs are frozen during the restore and
// continue with their old state.
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
				must(t, f.Admin().Apply(t.Context(), poolOf(20))) // enough for all
				f.awaitServing(young)
				f.awaitRemoved("m")
				t.Logf("%s from the API server's return to the final state", time.Since(began).Round(time.Millisecond))
				if now := f.addressesOf(old); !maps.Equal(now, addressesOf) {
					t.Errorf("Services had %v, and now have %v", addressesOf, now)
				}
				t.Logf("%d events checked", h.check(qualified(addressesOf)))
				must(t, errors.Join(controller.alive(), speaker.alive()))
			})
		}
	})
}

// withT returns f for a subtest.
func (f *fanfare) withT(t *testing.T) *fanfare {
	g := *f
	g.T = t
	return &g
}

// reassignAddresses deletes some of the old Services, assigns their addresses to others,
// and creates one old Service again, which gets another address.
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
		f.Fatalf("%d addresses have new Services: want at least 3", inherited)
	}
}

// burst calls during while Services are being created, some with and some without
// addresses.
func (f *fanfare) burst(during func()) {
	f.Helper()
	must(f.T, f.Admin().Apply(f.Context(), poolOf(200)))
	ctx, stop := context.WithCancel(f.Context())
	defer stop()
	var done sync.WaitGroup
	done.Go(func() {
		for i := 0; ctx.Err() == nil && i < 150; i++ {
			// Errors are expected when the API server ends.
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

// addressesByPrefix returns the addresses of Services by a prefix of their names.
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

// addressesOf returns the addresses of those Services that have one.
func (f *fanfare) addressesOf(services []podService) map[string]string {
	f.Helper()
	all := f.addressesByPrefix("")
	maps.DeleteFunc(all, func(name, _ string) bool {
		return !slices.ContainsFunc(services, func(s podService) bool { return s.name == name })
	})
	return all
}

// awaitServing waits until each Service has an address at which its pod answers.
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

// awaitRemoved waits until the node forwards only addresses of existing Services.
func (f *fanfare) awaitRemoved(prefix string) {
	f.Helper()
	await(f.T, 60*time.Second, "the removal of old addresses", func() error {
		if n := len(f.addressesByPrefix(prefix)); n != 0 {
			f.Fatalf("%d Services %s… exist again", n, prefix)
		}
		s, err := f.status()
		if err != nil {
			return err
		}
		if have, want := len(s.Addresses), len(f.addressesByPrefix("")); have != want {
			return fmt.Errorf("%d addresses are forwarded, want %d", have, want)
		}
		return nil
	})
}

// qualified adds the namespace to the names.
func qualified(addressesOf map[string]string) map[string]string {
	out := map[string]string{}
	for name, addr := range addressesOf {
		out["default/"+name] = addr
	}
	return out
}
