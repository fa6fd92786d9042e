package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/observer"
)

// The last part of the scenario: invalid input, and the deletion of a Service.

// invalidObjects are files with mistakes, and the words that one line of the status must
// contain for each.
var invalidObjects = []struct {
	file, text string
	named      []string
}{
	{"typo", "apiVersion: v1\nkind: Service\nmetadata: {name: typo\nspec: [\n", []string{"typo.yaml"}},
	{"office", "apiVersion: fanfare.io/v1alpha1\nkind: AddressPool\nmetadata: {name: office}\nspec:\n  announce: " +
		"BGP\n  addresses: [192.0.2.128/25]\n",
		[]string{"AddressPool office", "192.0.2.128", "lan"}},
	{"tor2", "apiVersion: fanfare.io/v1alpha1\nkind: BGPPeer\nmetadata: {name: tor2}\nspec: {peerASN: " +
		"64496, myASN: 64497}\n",
		[]string{"BGPPeer tor2", "peerAddress"}},
}

// invalidServices request addresses that they cannot get.
var invalidServices = []struct {
	Service
	named []string
}{
	{Service{Name: "outside", Ask: []netip.Addr{netip.MustParseAddr("198.18.0.1")}, Endpoints: At("p11")},
		[]string{"shop/outside", "198.18.0.1"}},
	{Service{Name: "twin-a", Ask: []netip.Addr{netip.MustParseAddr("192.0.2.66")}, Endpoints: At("p11")}, nil},
	{Service{Name: "twin-b", Ask: []netip.Addr{netip.MustParseAddr("192.0.2.66")}, Endpoints: At("p21")},
		[]string{"shop/twin-b", "192.0.2.66", "shop/twin-a"}},
}

func badInput(ctx context.Context, s *StepRun) (err error) {
	good := Service{Name: "good", Policy: localTraffic, Endpoints: At("p11")}
	vip, err := s.Serve(ctx, good, "n1")
	defer s.Drop(ctx, &err, good.Name, vip)
	if err != nil {
		return err
	}
	var want [][]string
	for _, m := range invalidObjects {
		defer s.Drop(ctx, &err, m.file)
		if err := s.Cluster.PutText(m.file, m.text); err != nil {
			return err
		}
		want = append(want, m.named)
	}
	for _, b := range invalidServices {
		defer s.Drop(ctx, &err, b.Name)
		if err := s.Cluster.Put(b.Service); err != nil {
			return err
		}
		if b.named != nil {
			want = append(want, b.named)
		}
	}
	s.Action("a file that does not parse, a pool that overlaps another, a peer with no address, a " +
		"Service that requests an\n" +
		"address outside every pool, two Services that request one address")
	lines, err := s.AwaitStatusLines(ctx, want)
	if err != nil {
		return err
	}
	s.Observed("`fanfare status` on n1 shows:\n%s", strings.Join(lines, "\n"))
	return s.CheckValidServices(ctx, vip)
}

// AwaitStatusLines waits until the status contains a line with all words for each mistake,
// and returns these lines.
func (s *StepRun) AwaitStatusLines(ctx context.Context, want [][]string) (lines []string, err error) {
	err = Await(ctx, Settle, "mistakes in `fanfare status`", func() error {
		text, err := s.Speaker("n1").StatusText(ctx)
		if err != nil {
			return err
		}
		lines = lines[:0]
		for _, words := range want {
			line, ok := lineWith(text, words)
			if !ok {
				return fmt.Errorf("no line has all of %q:\n%s", words, text)
			}
			lines = append(lines, "  "+strings.TrimSpace(line))
		}
		return nil
	})
	return lines, err
}

func lineWith(text string, words []string) (string, bool) {
	for line := range strings.Lines(text) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return line, true
		}
	}
	return "", false
}

// CheckValidServices checks that valid Services work: an existing one, a new one, and the
// first of two that request one address.
func (s *StepRun) CheckValidServices(ctx context.Context, old netip.Addr) (err error) {
	fresh := Service{Name: "newcomer", Policy: localTraffic, Endpoints: At("p21")}
	vip, err := s.Serve(ctx, fresh, "n2")
	defer s.Drop(ctx, &err, fresh.Name, vip)
	if err != nil {
		return err
	}
	for addr, pod := range map[netip.Addr]string{old: "p11", vip: "p21", invalidServices[1].Ask[0]: "p11"} {
		a, err := s.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(addr, 80))
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		if a.Pod != pod {
			return fmt.Errorf("%s: answered by %s: want %s", addr, a.Pod, pod)
		}
	}
	s.Observed("meanwhile an existing Service, a new one, and the first of the two that request one address all answer")
	return nil
}

func withdrawal(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "leaver", Policy: localTraffic, Endpoints: At("p11")}
	vip, err := s.Serve(ctx, svc, "n1")
	if err != nil {
		return err
	}
	deleted := time.Now()
	s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	var rules time.Time
	err = Await(ctx, Settle, "removal of the rules for "+vip.String(), func() error {
		if rules = s.Observer.RulesGone("n1", vip, deleted); rules.IsZero() {
			return errors.New("the rules exist")
		}
		return nil
	})
	if err != nil {
		return err
	}
	sent, route := s.Observer.Withdrawn("n1", vip, deleted), s.Observer.RouteVia(vip, deleted)
	s.Action("the Service was deleted")
	s.Observed("after %s n1 sent the withdrawal to tor1, after %s tor1's kernel removed the route\nn1's kernel kept "+
		"the address for %.3f s after the withdrawal (linger time %s)",
		ms(sent.Sub(deleted)), ms(route.Sub(deleted)), rules.Sub(sent).Seconds(), observer.Linger)
	if rules.Sub(sent) < observer.Linger-s.SendDelay() {
		return fmt.Errorf("kept for %s: want %s", rules.Sub(sent), observer.Linger)
	}
	return nil
}

// order checks all events since the lab was built.
func order(_ context.Context, s *StepRun) error {
	v := s.Observer.Verdict(s.SendDelay())
	s.Observed("%s", v)
	if len(v.Violations) > 0 {
		return fmt.Errorf("%d violations", len(v.Violations))
	}
	if v.Announced == 0 {
		return errors.New("no announcement was seen at all")
	}
	return nil
}
