package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// The third part of the scenario: long-lived connections, and packets that arrive before
// the rules.

const flowNumber = 60

func flowsUnderCluster(ctx context.Context, s *StepRun) error {
	return s.withFlows(ctx, Service{Name: "longlived", Endpoints: At("p11", "p21", "p31")}, NodeNames)
}

func flowsUnderLocal(ctx context.Context, s *StepRun) error {
	return s.withFlows(ctx, Service{Name: "longlived-local", Policy: localTraffic, Endpoints: At("p11", "p21", "p31")},
		[]string{"n2", "n3"})
}

// withFlows opens connections to a Service with a pod on each node and removes n1's pod.
// Connections to the other pods must stay open if the router leaves them on their node.
func (s *StepRun) withFlows(ctx context.Context, svc Service, after []string) (err error) {
	vip, err := s.Serve(ctx, svc, NodeNames...)
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	to := netip.AddrPortFrom(vip, 7)
	flows, err := s.Client.OpenFlows(ctx, flowNumber, to)
	if err != nil {
		return err
	}
	defer func() { flows.Close() }()
	before, err := s.ingresses(ctx, flows, to)
	if err != nil {
		return err
	}
	if err := s.loseLastEndpoint(ctx, svc, vip, after); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.StartPod(context.WithoutCancel(ctx), "p11")) }()
	if err := flows.AwaitLines(ctx, 20); err != nil {
		return err
	}
	now, err := s.ingresses(ctx, flows, to)
	if err != nil {
		return err
	}
	return s.judgeFlows(flows, before, now)
}

// loseLastEndpoint terminates and removes p11, and waits until the router has the new next
// hops.
func (s *StepRun) loseLastEndpoint(ctx context.Context, svc Service, vip netip.Addr, after []string) error {
	svc.Endpoints = []Endpoint{{"p11", Terminating}, {"p21", Ready}, {"p31", Ready}}
	if err := s.Cluster.Put(svc); err != nil {
		return err
	}
	if err := s.Router.AwaitNextHops(ctx, Settle, vip, after...); err != nil {
		return err
	}
	s.Pod("p11").Kill()
	svc.Endpoints = At("p21", "p31")
	return s.Cluster.Put(svc)
}

// ingresses returns the ingress node of each connection, from the router.
func (s *StepRun) ingresses(ctx context.Context, flows *Flows, to netip.AddrPort) (map[*Flow]string, error) {
	by := map[*Flow]string{}
	for _, f := range flows.All {
		node, err := s.Router.Ingress(ctx, "tcp", f.From, to)
		if err != nil {
			return nil, err
		}
		by[f] = node
	}
	return by, nil
}

func (s *StepRun) judgeFlows(flows *Flows, before, now map[*Flow]string) error {
	var gone, kept, moved, movedAlive int
	var errs []error
	for _, f := range flows.All {
		switch err := f.Err(); {
		case f.Pod == "p11":
			gone++
		case before[f] != now[f]:
			moved++
			if err == nil {
				movedAlive++
			}
		default:
			kept++
			if err != nil {
				errs = append(errs, fmt.Errorf("%s through %s to %s: %w", f.From, now[f], f.Pod, err))
			}
		}
	}
	s.Action("%d connections, a line every 50 ms on each, pods on n1, n2 and n3; p11, the last one on n1, was "+
		"terminated and removed", flowNumber)
	s.Observed("%d were to p11 and ended with it\n%d to other pods stayed on their node: %d of them are open\n%d to "+
		"other pods were moved to another node by the router: %d of them are open",
		gone, kept, kept-len(errs), moved, movedAlive)
	if gone == 0 || kept == 0 {
		errs = append(errs, errors.New("want some connections to p11 and some that the router kept"))
	}
	return errors.Join(errs...)
}

// earlyPackets sends packets to a node before it has rules for their address. Without
// precautions they leave a conntrack entry without translation, and later packets from the
// same client port match that entry.
func earlyPackets(ctx context.Context, s *StepRun) error {
	if err := s.earlyWithSpeaker(ctx); err != nil {
		return fmt.Errorf("a speaker without the Service: %w", err)
	}
	if err := s.earlyWithoutSpeaker(ctx); err != nil {
		return fmt.Errorf("no speaker: %w", err)
	}
	return nil
}

func (s *StepRun) earlyWithSpeaker(ctx context.Context) error {
	vip := netip.MustParseAddr("192.0.2.61")
	return s.early(ctx, vip, "n1", "p11", func(entries int) error {
		s.Action("a SYN and a datagram to %s reached n1 before a Service held the address; then one was created", vip)
		s.Observed("they left %d conntrack entries on n1", entries)
		return nil
	})
}

// earlyWithoutSpeaker turns conntrack on by rules of another table, as kube-proxy or a CNI
// plug-in does.
func (s *StepRun) earlyWithoutSpeaker(ctx context.Context) (err error) {
	vip := netip.MustParseAddr("192.0.2.62")
	n3 := s.Namespace("n3")
	if err := s.Speaker("n3").Terminate(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.StartSpeakers(context.WithoutCancel(ctx), "n3")) }()
	if _, err := n3.Run(ctx, s.Binary, "cleanup", "--run-dir", s.Speaker("n3").RunDir); err != nil {
		return err
	}
	for _, rule := range []string{"add table inet other",
		"add chain inet other forward { type filter hook forward priority 0; }",
		"add rule inet other forward ct state new counter accept"} {
		if _, err := n3.Run(ctx, "nft", rule); err != nil {
			return err
		}
	}
	defer func() {
		_, e := n3.Run(context.WithoutCancel(ctx), "nft", "delete table inet other")
		err = errors.Join(err, e)
	}()
	return s.early(ctx, vip, "n3", "p31", func(entries int) error {
		s.Action("a SYN and a datagram to %s reached n3 before its speaker ran; then the speaker was started "+
			"and a Service created", vip)
		s.Observed("they left %d conntrack entries on n3", entries)
		if entries < 2 {
			return fmt.Errorf("%d conntrack entries before the speaker's start: want the untranslated entries "+
				"that this step tests", entries)
		}
		return s.StartSpeakers(ctx, "n3")
	})
}

// early sends the first packets by a static route, creates the Service, and then uses the
// same client ports.
func (s *StepRun) early(ctx context.Context, vip netip.Addr, node, pod string,
	between func(entries int) error) (err error) {
	web, echo := netip.AddrPortFrom(vip, 80), netip.AddrPortFrom(vip, 7)
	// These ports are below the kernel's range for other connections.
	from := netip.AddrPortFrom(ClientAddr, 2000+uint16(vip.As4()[3]))
	route := []string{"ip", "route", "add", vip.String(), "via", NodeAddr(node, vip).String()}
	if _, err := s.Router.Run(ctx, route...); err != nil {
		return err
	}
	errTCP, errUDP := s.tryBoth(ctx, from, web, echo)
	entries, err := s.Namespace(node).conntrack(vip)
	route[2] = "del"
	if _, e := s.Router.Run(ctx, route...); err != nil || e != nil {
		return errors.Join(err, e)
	}
	if errTCP == nil || errUDP == nil {
		return errors.New("a pod answered before there was a Service")
	}
	if err := between(len(entries)); err != nil {
		return err
	}
	svc := Service{Name: "late-" + node, Policy: localTraffic, Ask: []netip.Addr{vip}, Endpoints: At(pod)}
	defer s.Drop(ctx, &err, svc.Name, vip)
	if _, err := s.Serve(ctx, svc, node); err != nil {
		return err
	}
	a, errTCP := s.Client.Get(ctx, from, web)
	u, errUDP := s.Client.AskUDP(ctx, from, echo)
	if err := errors.Join(errTCP, errUDP); err != nil {
		return fmt.Errorf("the same client ports afterwards: %w", err)
	}
	s.Observed("the same client port %d afterwards: answered by %s over TCP, by %s over UDP", from.Port(), a.Pod, u.Pod)
	return nil
}

// tryBoth sends a SYN and a datagram that are not answered yet, with short timeouts.
func (s *StepRun) tryBoth(ctx context.Context, from, web, echo netip.AddrPort) (errTCP, errUDP error) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, errTCP = s.Client.Get(ctx, from, web)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 300*time.Millisecond)
	defer cancel()
	_, errUDP = s.Client.AskUDP(ctx, from, echo)
	return errTCP, errUDP
}
