package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A fakePath records its calls, and fails on request.
type fakePath struct {
	kernel func() string // what the rules are at the moment

	mu     sync.Mutex
	calls  []string
	fail   map[string]error // by call; "rest" is a Shrink to no frontends
	status fastpath.Status
}

func (f *fakePath) call(name string, want fastpath.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var taken []string
	for _, fe := range fastFrontends(want) {
		if fe.Take {
			taken = append(taken, fe.Addr.String())
		}
	}
	rules := ""
	if f.kernel != nil {
		rules = " by rules for " + f.kernel()
	}
	f.calls = append(f.calls, fmt.Sprintf("%s%s%s", name, taken, rules))
	return f.fail[name]
}

func (f *fakePath) Shrink(_ context.Context, want fastpath.State) error {
	if len(fastFrontends(want)) == 0 && len(want.VIPs) > 0 {
		return f.call("rest", want)
	}
	return f.call("shrink", want)
}

func (f *fakePath) Grow(_ context.Context, want fastpath.State) error { return f.call("grow", want) }

func (f *fakePath) Forget(context.Context, map[netip.Addr]bool) error {
	return f.call("forget", fastpath.State{})
}

func (f *fakePath) Status() fastpath.Status { return f.status }

func (f *fakePath) Close() error { return f.call("close", fastpath.State{}) }

// take returns the calls since it was called before.
func (f *fakePath) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.calls, ", ")
	f.calls = nil
	return text
}

func (f *fakePath) opener() OpenFastPath {
	return func(context.Context, func([]fastpath.Flow)) (FastPath, error) {
		return f, f.call("open", fastpath.State{})
	}
}

// fastWebState is a frontend that the fast path takes, at each of the addresses.
func fastWebState(names ...string) State {
	s := State{Node: "n1", Outward: []string{"eth0"}}
	for _, name := range names {
		to := Target{Backends: proxytest.Backends(0, "pod1")}
		s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{
			Addr: proxytest.At(name, 0), Frontends: []Frontend{{Protocol: TCP, Port: 80, Name: "shop/web", External: to,
				Internal: to}},
		})
	}
	return s
}

// The fast path gives up what goes before the rules change, and gets what comes after
// they did; if they could not be changed it gets nothing.
func TestFastPathFollowsTheRules(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		path := &fakePath{fail: map[string]error{}}
		path.kernel = func() string {
			var vips []netip.Addr
			for _, e := range proxytest.ReadSet(t, state.SetVIPs) {
				a, _ := netip.AddrFromSlice([]byte(e.Key))
				vips = append(vips, a)
			}
			return fmt.Sprint(vips)
		}
		p, err := New(t.Context(), Options{
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Mode: testMode, FastPath: path.opener(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if got := path.take(); got != "" {
			t.Errorf("New: %s; it changes nothing", got)
		}
		both, one := fastWebState("vip", "vip2"), fastWebState("vip")
		for _, tc := range []struct {
			state State
			want  string
		}{
			{both, "open[] by rules for [], shrink[192.0.2.1:80 192.0.2.2:80] by rules for [], grow[192.0.2.1:80 " +
				"192.0.2.2:80] by rules for [192.0.2.1 192.0.2.2]"},
			{one, "shrink[192.0.2.1:80] by rules for [192.0.2.1 192.0.2.2], grow[192.0.2.1:80] by " +
				"rules for [192.0.2.1]"},
			// this finds what another program detached
			{one, "shrink[192.0.2.1:80] by rules for [192.0.2.1], grow[192.0.2.1:80] by rules for [192.0.2.1]"},
		} {
			mustSet(t, p, tc.state)
			if got := path.take(); got != tc.want {
				t.Errorf("%s\nwant\n%s", got, tc.want)
			}
		}
		bad := one
		bad.VIPs, bad.Owned = both.VIPs, proxytest.Prefixes("192.0.2.1/24")
		if err := p.Set(t.Context(), bad); err == nil || path.take() != "" {
			t.Errorf("an invalid State: %v, and it reached the fast path", err)
		}
		p.sock.Close()
		if err := p.Set(t.Context(), both); err == nil {
			t.Fatal("the rules changed without a socket")
		}
		if got, want := path.take(), "shrink[192.0.2.1:80 192.0.2.2:80] by rules for [192.0.2.1]"; got != want {
			t.Errorf("rules that could not be changed: %s; want %s", got, want)
		}
	})
}

// Whatever fails of the fast path, new flows are left to the rules, it is said, and
// tried again.
func TestFastPathFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := &fakePath{fail: map[string]error{"open": errors.New("no BPF here")}}
		requests := 0
		b := newOffloader(path.opener(), nil, slog.New(slog.NewTextHandler(t.Output(), nil)), func() { requests++ })
		s := fastWebState("vip")
		set := func() string {
			b.shrink(t.Context(), s)
			b.grow(t.Context())
			return path.take()
		}
		await := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			bubble.Wait()
			if requests != want {
				t.Errorf("%d Sets requested; want %d", requests, want)
			}
			requests = 0
		}
		check := func(when, wantError string, wantTaken int) {
			t.Helper()
			st := b.status(s)
			if st.Error != wantError || st.Frontends != wantTaken || st.Frontends+len(st.NotOffloaded) != 1 {
				t.Errorf("%s: %+v; want %q, and %d taken", when, st, wantError, wantTaken)
			}
		}
		if got := set(); got != "open[]" {
			t.Errorf("it cannot be opened: %s", got)
		}
		if got := set(); got != "" {
			t.Errorf("at once again: %s", got)
		}
		check("not opened", "no BPF here", 0)
		await(offloadRetry, 1)
		delete(path.fail, "open")
		if got, want := set(), "open[], shrink[192.0.2.1:80], grow[192.0.2.1:80]"; got != want {
			t.Errorf("%s; want %s", got, want)
		}
		check("opened", "", 1)
		await(2*offloadRetry, 0)

		path.fail["shrink"] = errors.New("shrink")
		if got, want := set(), "shrink[192.0.2.1:80], rest[], grow[192.0.2.1:80]"; got != want {
			t.Errorf("Shrink fails: %s; want %s", got, want)
		}
		check("Grow made it right", "", 1)
		delete(path.fail, "shrink")
		path.fail["grow"] = errors.New("grow")
		for range 3 { // each puts off the one before
			if got, want := set(), "shrink[192.0.2.1:80], grow[192.0.2.1:80], rest[]"; got != want {
				t.Errorf("Grow fails: %s; want %s", got, want)
			}
		}
		check("Grow failed", "grow", 0)
		await(offloadRetry, 1)
		path.fail["rest"] = errors.New("rest")
		set()
		check("all fails", "grow\nnew flows may go to backends that are gone: rest", 0)
		clear(path.fail)
		set()
		check("well again", "", 1)
		await(2*offloadRetry, 0)
		if err := b.close(); err != nil || path.take() != "close[]" {
			t.Errorf("close: %v", err)
		}
	})
}

// busy reports whether flows that may have to end are still looked at.
func (o *offloader) busy() bool { return o != nil && o.path.Status().Busy }

// The status names what is left to the rules, by the proxy or the fast path, and metrics count.
func TestFastPathStatus(t *testing.T) {
	path := &fakePath{status: fastpath.Status{
		Interfaces: []string{"eth0"}, Flows: 7, Capacity: 100, Full: 3,
		Limited: []fastpath.Limit{{Addr: proxytest.At("vip2", 0), Flows: 5, Rejected: 3}},
		NotOffloaded: []fastpath.NotOffloaded{{Addr: netip.AddrPortFrom(proxytest.At("vip2", 0), 80),
			Protocol: fastpath.TCP, Why: "no interface leads to backend 10.244.1.11:8080"}},
		Problems: []string{"there is no interface eth1"},
	}}
	b := newOffloader(path.opener(), nil, slog.New(slog.DiscardHandler), func() {})
	s := fastWebState("vip", "vip2")
	s.VIPs.At(0).Frontends = append(s.VIPs.At(0).Frontends,
		Frontend{Protocol: TCP, Port: 81, External: Target{Backends: proxytest.Backends(0, "remote")}},
		Frontend{
			Protocol: TCP, Port: 82, External: Target{Miss: Drop},
			Internal: Target{Backends: proxytest.Backends(0, "remote")},
		})
	b.shrink(t.Context(), s)
	b.grow(t.Context())
	got := b.status(s)
	want := []NotOffloaded{
		{"192.0.2.1 tcp/81", "backends on other nodes"},
		{"192.0.2.2 tcp/80 shop/web", "no interface leads to backend 10.244.1.11:8080"},
	}
	if got.Frontends != 1 || !slices.Equal(got.NotOffloaded, want) || got.Error != "there is no interface eth1" ||
		got.Flows != 7 || got.Capacity != 100 ||
		!slices.Equal(got.Limited, []LimitedAddress{{proxytest.At("vip2", 0), 5, 3}}) {
		t.Errorf("%+v; want 1 frontend, and left\n%+v", got, want)
	}
	r := prometheus.NewRegistry()
	if err := b.register(r); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(`
# HELP fanfare_proxy_fast_path_capacity Flows for which the fast path has room.
# TYPE fanfare_proxy_fast_path_capacity gauge
fanfare_proxy_fast_path_capacity 100
# HELP fanfare_proxy_fast_path_flows Flows that go past netfilter by the fast path.
# TYPE fanfare_proxy_fast_path_flows gauge
fanfare_proxy_fast_path_flows 7
# HELP fanfare_proxy_fast_path_frontends Frontends whose new flows the fast path takes.
# TYPE fanfare_proxy_fast_path_frontends gauge
fanfare_proxy_fast_path_frontends 1
# HELP fanfare_proxy_fast_path_full_total New flows that the fast path left to the rules, since it had no room for another flow of their address.
# TYPE fanfare_proxy_fast_path_full_total counter
fanfare_proxy_fast_path_full_total 3
# HELP fanfare_proxy_fast_path_limited_addresses Addresses that have as many flows in the fast path as they may have.
# TYPE fanfare_proxy_fast_path_limited_addresses gauge
fanfare_proxy_fast_path_limited_addresses 1
`)); err != nil {
		t.Error(err)
	}
	var none *offloader
	if st := none.status(s); st != nil {
		t.Errorf("%+v without a fast path", st)
	}
}
