package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A lane is one path from the client to pods, which is measured repeatedly.
type lane struct {
	laneResult
	node *node // the node that the packets pass
	// Destinations of connections and datagrams, in turn. Without udp only connections are
	// measured.
	tcp, udp    []netip.AddrPort
	hasRequests bool // requests are measured, too
}

// A laneResult holds the measurements of a lane.
type laneResult struct {
	Name string
	Size int // number of Services in the tables; 0: no tables

	Connections, Requests, Datagrams []rate // one each round
}

// A rounds value says how often and how long each lane is measured.
type rounds struct {
	Count int
	Span  time.Duration
}

// measureLanes measures all lanes in turn, round after round. Each round starts with
// another lane, so that no lane always follows the same one.
func (w *world) measureLanes(ctx context.Context, lanes []*lane, r rounds) error {
	s, err := serve(w.server)
	if err != nil {
		return err
	}
	defer s.close()
	for round := range r.Count {
		first := round % len(lanes)
		for _, l := range slices.Concat(lanes[first:], lanes[:first]) {
			if err := w.measureLane(ctx, s, l, r.Span); err != nil {
				return fmt.Errorf("%s, %d Services: %w", l.Name, l.Size, err)
			}
		}
	}
	return nil
}

// measureLane measures one lane once.
func (w *world) measureLane(ctx context.Context, s *server, l *lane, span time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.routeVia(l.node); err != nil {
		return err
	}
	c, err := connections(w.client, l.tcp, span, idle)
	if err != nil {
		return err
	}
	l.Connections = append(l.Connections, c)
	if err := errors.Join(l.node.flushConntrack(), w.ask(s, l, span)); err != nil || len(l.udp) == 0 {
		return err
	}
	d, err := datagrams(ctx, w.client, s, l.udp, span)
	if err != nil {
		return err
	}
	l.Datagrams = append(l.Datagrams, d)
	return l.node.flushConntrack()
}

// ask measures requests, if the lane has them.
func (w *world) ask(s *server, l *lane, span time.Duration) error {
	if !l.hasRequests {
		return nil
	}
	s.answers.Store(true)
	defer s.answers.Store(false)
	r, err := connections(w.client, l.tcp, span, ask)
	if err != nil {
		return err
	}
	l.Requests = append(l.Requests, r)
	return l.node.flushConntrack()
}

// quartiles summarise a number of rounds.
type quartiles struct {
	Low, Median, High float64 // Low and High are the quartiles
}

func quartilesOf(values []float64) (s quartiles) {
	if len(values) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }
	return quartiles{at(0.25), at(0.5), at(0.75)}
}

// ratios compares a lane with its base round by round, because a slow phase of the machine
// affects both.
func ratios(of, base []rate) quartiles {
	var all []float64
	for i := range min(len(of), len(base)) {
		all = append(all, float64(of[i]/base[i]))
	}
	return quartilesOf(all)
}

// rates returns the quartiles of the rounds themselves.
func rates(of []rate) quartiles {
	var all []float64
	for _, r := range of {
		all = append(all, float64(r))
	}
	return quartilesOf(all)
}
