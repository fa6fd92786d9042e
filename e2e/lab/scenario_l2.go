package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"
)

// lostLink tests layer 2 without the router of the other steps. It is not one of Steps,
// because it builds its own lab.
var lostLink = Step{"LostLink", "Layer 2: the node that answers by ARP loses its link, under load, in a third lab",
	"no request lost that begins after another node has taken over", answerByARP}

// discovery is the speaker's discoveryTime. If a speaker misses a node so soon after its start, it
// waits for the node before it takes over: the speaker itself may be cut off.
const discovery = 2 * time.Second

func answerByARP(ctx context.Context, s *StepRun) (err error) {
	o := Options{ID: s.ID + "link", Topology: s.Topology, Binary: s.Binary, Slack: s.Slack}
	l, err := Up(ctx, o.ForL2(filepath.Dir(s.Topology)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	if err := l.StartL2Speakers(ctx, NodeNames...); err != nil {
		return err
	}
	if err := pause(ctx, discovery); err != nil {
		return err
	}
	other := &StepRun{Lab: l}
	defer s.addReport(other)
	return loseLink(ctx, other)
}

// loseLink takes down the link of the announcing node. The pods are on the other nodes, so
// that only the address moves.
func loseLink(ctx context.Context, s *StepRun) error {
	const node = "n1"
	svc := Service{
		Name: "cable", Annotations: map[string]string{"fanfare.io/l2-node": node}, Endpoints: At("p21", "p31"),
	}
	if err := s.Cluster.Put(svc); err != nil {
		return err
	}
	vip, err := s.AwaitAddress(ctx, "shop/"+svc.Name, false)
	if err != nil {
		return err
	}
	if _, err := s.AwaitOwner(ctx, vip, node); err != nil {
		return err
	}
	moves, err := s.WatchNeighbours()
	if err != nil {
		return err
	}
	defer moves.Close()
	load := s.Host().StartLoad(ctx, netip.AddrPortFrom(vip, 80))
	if err := load.AwaitAnswered(ctx, time.Now()); err != nil {
		return err
	}
	disconnected := time.Now()
	if err := s.Disconnect(ctx, node); err != nil {
		return err
	}
	moved, err := moves.Await(ctx, vip, disconnected)
	if err == nil {
		err = load.AwaitAnswered(ctx, moved)
	}
	if err != nil {
		return err
	}
	r := load.Stop()
	s.Action("%s answered by ARP for %s, and a host on the same segment opened %d connections a second; then the "+
		"node's link was taken down", node, vip, Rate)
	s.Observed("after %s the host sends to another node\n%s", ms(moved.Sub(disconnected)), r)
	if later := slices.DeleteFunc(slices.Clone(r.Lost),
		func(l Loss) bool { return !l.Begin.After(moved) }); len(later) > 0 {
		return fmt.Errorf("requests were lost that began after the move:\n%s", Report{Lost: later}.Losses(moved))
	}
	return nil
}
