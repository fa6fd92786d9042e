package kube

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// A contention is one API server, users who create, move and delete Services and change
// pools, and two controllers that both write. Each controller is frozen and killed at
// random, in the middle of its work, so that its requests and its view of the cluster are
// old when it continues.
type contention struct {
	*fanfare
	*rand.Rand
	controllers [2]*program
}

const (
	busyServices   = 150 // Services that users create and delete
	changesPerUser = 120 // changes by each user
	users          = 3
)

// Two controllers both act as the leader. No address ever has two Services; unchanged
// Services keep their addresses; at the end each Service has an address, and both
// controllers are idle.
func TestTwoLeadersNeverShareAnAddress(t *testing.T) {
	isolated(t, func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		b := &contention{fanfare: newFanfare(t), Rand: rand.New(rand.NewPCG(seed, 0))}
		for i := range b.controllers {
			b.startController(i)
		}
		must(t, b.Admin().Apply(t.Context(), poolOfSize("lan", 100)+"---"+poolOfSize("dmz", 100)))
		steady := b.createSteady()
		h := b.recordHistory(t)
		before := b.requests("POST|PUT|PATCH|DELETE")

		began := time.Now()
		end := b.disturb()
		b.changeObjects()
		end()
		must(t, b.Admin().Apply(t.Context(), poolOfSize("lan", 250)+"---"+poolOfSize("dmz", 250)))
		changed := time.Since(began)
		b.awaitAllAssigned()
		took := time.Since(began) - changed
		writes := b.requests("POST|PUT|PATCH|DELETE") - before
		b.awaitQuiet(12 * time.Second)
		t.Logf("%d changes in %s; settled %s later; %.0f writes to Services, claims, pools and "+
			"Events; %d events checked",
			users*changesPerUser, changed.Round(time.Millisecond), took.Round(time.Millisecond), writes,
			h.check(steady))
		// A change costs one bound and one released claim, a status and an Event, by each
		// controller. Controllers that undo each other's work would write without end.
		if most := 20.0 * (users*changesPerUser + busyServices); writes > most {
			t.Errorf("%.0f writes, want at most %.0f", writes, most)
		}
	})
}

// startController starts a controller without leader election.
func (b *contention) startController(i int) {
	b.controllers[i] = b.run("controller", fmt.Sprintf("--metrics-address=127.0.0.1:%d", 7873+i))
}

// poolOfSize returns an AddressPool with n addresses of its own network.
func poolOfSize(name string, n int) string {
	third := map[string]int{"lan": 2, "dmz": 3}[name]
	return fmt.Sprintf(`
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: %s}
spec: {announce: BGP, addresses: [192.0.%d.1-192.0.%[2]d.%d]}
`, name, third, n)
}

func serviceOfPool(name, pool string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: default, name: %s, annotations: {fanfare.io/address-pool: "%s"}}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}
`, name, pool)
}

// createSteady creates Services that the test does not change, and returns their addresses.
func (b *contention) createSteady() map[string]string {
	b.Helper()
	const n = 30
	for i := range n {
		// They request no pool: a Service that requests one moves when the pool loses its
		// address.
		must(b.T, b.Admin().Apply(b.Context(), serviceOfPool(fmt.Sprintf("steady-%d", i), "")))
	}
	await(b.T, 60*time.Second, "the first addresses", func() error {
		if have := len(b.addressesByPrefix("steady-")); have != n {
			return fmt.Errorf("%d have one", have)
		}
		return nil
	})
	return qualified(b.addressesByPrefix("steady-"))
}

// changeObjects runs all users.
func (b *contention) changeObjects() {
	b.Helper()
	var all errgroup.Group
	for range users {
		dice := rand.New(rand.NewPCG(b.Uint64(), 0)) // A Rand is not safe for concurrent use.
		all.Go(func() error {
			for range changesPerUser {
				if err := b.changeOnce(dice); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(b.T, all.Wait())
}

func (b *contention) changeOnce(dice *rand.Rand) error {
	name, pool := fmt.Sprintf("busy-%d", dice.IntN(busyServices)), []string{"lan", "dmz"}[dice.IntN(2)]
	switch n := dice.IntN(20); {
	case n < 6:
		return b.Admin().Delete(b.Context(), serviceOfPool(name, ""))
	case n < 19:
		return b.Admin().Apply(b.Context(), serviceOfPool(name, pool))
	default:
		// Fewer addresses than Services, or more.
		return b.Admin().Apply(b.Context(), poolOfSize(pool, 40+dice.IntN(100)))
	}
}

// disturb freezes and kills the controllers at random, until end is called.
func (b *contention) disturb() (end func()) {
	ctx, stop := context.WithCancel(b.Context())
	var done sync.WaitGroup
	dice := rand.New(rand.NewPCG(b.Uint64(), 0))
	done.Go(func() {
		pause := func(most time.Duration) { wait(ctx, time.Duration(dice.Int64N(int64(most)))) }
		for ctx.Err() == nil {
			pause(time.Second)
			i := dice.IntN(2)
			if dice.IntN(4) == 0 {
				b.controllers[i].kill()
				b.startController(i)
				continue
			}
			b.controllers[i].freeze()
			pause(3 * time.Second)
			b.controllers[i].resume()
		}
	})
	return func() { stop(); done.Wait() }
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// awaitAllAssigned waits until each Service has one address of the requested pool, and no
// other claims exist.
func (b *contention) awaitAllAssigned() {
	b.Helper()
	await(b.T, 120*time.Second, "an address for each", func() error {
		services, err := b.Admin().List(b.Context(), serviceKind)
		if err != nil {
			return err
		}
		want := map[string]string{}
		for i := range services {
			s := &services[i]
			addrs, pool := addresses(s), s.GetAnnotations()["fanfare.io/address-pool"]
			if s.GetName() == "kubernetes" {
				continue
			}
			if len(addrs) != 1 || pool != "" && !regexp.MustCompile(map[string]string{"lan": `^192\.0\.2\.`,
				"dmz": `^192\.0\.3\.`}[pool]).MatchString(addrs[0]) {
				return fmt.Errorf("%s, which requests %s, has %v", s.GetName(), pool, addrs)
			}
			want[addrs[0]] = s.GetNamespace() + "/" + s.GetName()
		}
		have, err := b.claims()
		if err == nil && !maps.Equal(have, want) {
			err = fmt.Errorf("claims are %v, and addresses %v", have, want)
		}
		return err
	})
}

// claims returns the Services that hold claims, by address.
func (f *fanfare) claims() (map[string]string, error) {
	all, err := f.Admin().List(f.Context(), kindOf("AddressClaim"))
	if err != nil {
		return nil, err
	}
	holders := map[string]string{}
	for i := range all {
		e, err := eventOf(&all[i], false)
		if err != nil {
			return nil, err
		}
		holders[e.name] = strings.Join(e.holders, " ")
	}
	return holders, nil
}

// requests returns the API server's count of requests by verb for resources that
// controllers write, refused ones included.
func (f *fanfare) requests(verbs string) float64 {
	f.Helper()
	n, err := f.apiServerMetric("apiserver_request_total",
		regexp.MustCompile(`resource="(services|addressclaims|addresspools|events)".*verb="(`+verbs+`)"`))
	must(f.T, err)
	return n
}

// awaitQuiet waits until the controllers have made no request for a time.
func (f *fanfare) awaitQuiet(window time.Duration) {
	f.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	count, since := f.requests("GET|POST|PUT|PATCH|DELETE"), began
	for time.Since(since) < window {
		<-tick.C
		if n := f.requests("GET|POST|PUT|PATCH|DELETE"); n != count {
			count, since = n, time.Now()
		}
		if time.Since(began) > 2*time.Minute {
			f.Fatalf("the controllers do not become idle: last request %s ago", time.Since(since))
		}
	}
	if count == 0 {
		f.Fatal("no request was ever counted")
	}
}
