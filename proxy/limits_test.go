package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// One address that breaks a rule or a limit is refused alone, in every mode: others that
// come with it and after it are set as ever, and what it was before stays until it is right.
func TestSetRefusesOneAddress(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		good := func(i byte, version int) *VIP {
			v := proxytest.BenchVIP(0, version)
			v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
			return v
		}
		huge, broken := proxytest.LargeVIP(1, 66000, Random), good(3, 0)
		broken.Frontends = append(slices.Clone(broken.Frontends), broken.Frontends[0])
		refused := func(s State, vips ...*VIP) {
			t.Helper()
			err := p.Set(t.Context(), s)
			var all *Refused
			if !errors.As(err, &all) || len(all.Refusals) != len(vips) {
				t.Fatalf("got %.300s; want %d addresses refused", fmt.Sprint(err), len(vips))
			}
			for i, r := range all.Refusals {
				if r.VIP != vips[i] || r.Err == nil ||
					!strings.Contains(err.Error(), "vip "+r.VIP.Addr.String()+" is refused: ") {
					t.Errorf("refused %s: %v; want %s", r.VIP.Addr, r.Err, vips[i].Addr)
				}
			}
		}
		state := func(vips ...*VIP) State {
			return State{Node: "n1", VIPs: proxytest.VIPsOf(vips...), Owned: proxytest.Prefixes("192.0.2.0/24")}
		}
		two, four := good(2, 0), good(4, 0)
		refused(state(huge, two, broken), huge, broken)
		checkKernel(t, state(two))
		refused(state(huge, two, broken, four), huge, broken)
		checkKernel(t, state(two, four))
		if e := p.Status().LastError; e != "" {
			t.Errorf("last error %q", e)
		}

		// One that was right stays as it was.
		three := good(3, 1)
		refused(state(huge, two, three, four), huge)
		refused(state(huge, good(2, 1), broken, four), huge, broken)
		checkKernel(t, state(good(2, 1), three, four))
		mustSet(t, p, state(four))
		checkKernel(t, state(four))
	})
}

// The kernel may refuse what the limits allow. Set finds the addresses that it does not take.
func TestBisect(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		k := &picky{Renderer: p.rules.renderer}
		p.rules.renderer = k
		var s State
		s.Node, s.Owned = "n1", proxytest.Prefixes("198.18.0.0/15")
		for i := range 200 {
			s.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(i, 0))
		}
		small, large := s.VIPs.At(7), proxytest.LargeVIP(3, 40, Random)
		s.VIPs = proxytest.WithVIPs(s.VIPs, large)
		k.refuses = []*VIP{large, small}
		err := p.Set(t.Context(), s)
		var all *Refused
		if !errors.As(err, &all) || len(all.Refusals) != 2 || all.Refusals[0].VIP != large ||
			all.Refusals[1].VIP != small {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "the kernel refuses it: no room") {
			t.Error(err)
		}
		checkKernel(t, s.Without(State{}, state.Refusals{large.Addr: {}, small.Addr: {}}))
		if k.calls > 40 {
			t.Errorf("%d attempts for 201 addresses", k.calls)
		}

		// One that is forwarded stays as it was when its change is refused.
		next := s.Without(State{}, state.Refusals{large.Addr: {}})
		was, changed := next.VIPs.At(3), proxytest.BenchVIP(3, 1)
		next.VIPs = proxytest.WithVIPs(next.VIPs, changed)
		k.refuses = []*VIP{changed}
		err = p.Set(t.Context(), next)
		if !errors.As(err, &all) || len(all.Refusals) != 1 || all.Refusals[0].VIP != changed {
			t.Fatalf("got %v", err)
		}
		next.VIPs = proxytest.WithVIPs(next.VIPs, was)
		checkKernel(t, next)

		// No address is to blame when the kernel takes nothing at all, or not now.
		next.VIPs = proxytest.WithVIPs(next.VIPs, changed)
		k.all = fmt.Errorf("nothing at all: %w", unix.ENOMEM)
		if err := p.Set(t.Context(), next); err == nil || errors.As(err, &all) {
			t.Errorf("nothing is taken: %v", err)
		}
		k.all, k.refuses = nil, nil
		mustSet(t, p, next)
		checkKernel(t, next)

		// Nor when it took nothing only until the search began.
		k.once = fmt.Errorf("nothing at this moment: %w", unix.ENOMEM)
		next.VIPs = proxytest.WithVIPs(next.VIPs, was)
		mustSet(t, p, next)
		checkKernel(t, next)
	})
}

// A picky renderer has a kernel that does not take some addresses, or nothing.
type picky struct {
	renderer.Renderer
	refuses []*VIP
	all     error
	once    error // of the next call alone
	calls   int
}

func (k *picky) fails(want State) error {
	k.calls++
	if err := k.once; err != nil {
		k.once = nil
		return err
	}
	for v := range want.VIPs.All() {
		if slices.Contains(k.refuses, v) {
			return fmt.Errorf("no room: %w", unix.ENOMEM)
		}
	}
	return k.all
}

func (k *picky) Update(ctx context.Context, u renderer.Step) error {
	if err := k.fails(u.Want); err != nil {
		return err
	}
	return k.Renderer.Update(ctx, u)
}

func (k *picky) Converge(ctx context.Context, have *State, want State) (renderer.Finding, error) {
	if err := k.fails(want); err != nil {
		return renderer.Finding{}, err
	}
	return k.Renderer.Converge(ctx, have, want)
}
