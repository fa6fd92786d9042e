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

// pulledCable shows layer 2, which the router of the other steps has no part in. It is no
// part of Steps, as it looks at no lab but its own.
var pulledCable = Step{"PulledCable", "Without a router that speaks BGP: the node that answers by ARP loses its cable, under load, in a third lab", answerByARP}

func answerByARP(ctx context.Context, s *Scene) (err error) {
	o := Options{ID: s.ID + "link", Topology: s.Topology, Binary: s.Binary, Slack: s.Slack}
	l, err := Up(ctx, o.Links(filepath.Dir(s.Topology)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	if err := l.StartLinkSpeakers(ctx, NodeNames...); err != nil {
		return err
	}
	other := &Scene{Lab: l}
	defer func() { s.Lines = append(s.Lines, other.Lines...) }()
	return pullCable(ctx, other)
}

// pullCable takes the cable from the node that answers. The pods are on the others: what
// is shown is the address.
func pullCable(ctx context.Context, s *Scene) error {
	const node = "n1"
	svc := Service{Name: "cable", Annotations: map[string]string{"fanfare.io/l2-node": node}, Endpoints: At("p21", "p31")}
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
	pulled := time.Now()
	if err := s.Cut(ctx, node); err != nil {
		return err
	}
	moved, err := moves.Await(ctx, vip, pulled)
	if err == nil {
		err = load.AwaitAnswered(ctx, moved)
	}
	if err != nil {
		return err
	}
	r := load.Stop()
	s.Did("%s answered by ARP for %s, and a host on the same segment opened %d connections a second; then its cable was pulled", node, vip, Rate)
	s.Saw("after %s the host sends to another node\n%s", ms(moved.Sub(pulled)), r)
	if later := slices.DeleteFunc(slices.Clone(r.Lost), func(l Loss) bool { return !l.Begin.After(moved) }); len(later) > 0 {
		return fmt.Errorf("lost although they were begun after that:\n%s", Report{Lost: later}.Losses(moved))
	}
	return nil
}
