package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strings"
	"time"
)

// A Step is one thing that Fanfare promises, done and checked. Steps need
// running speakers, leave no Service behind, and can run alone.
type Step struct {
	Name  string // for programs, such as OrderlyMove
	Title string // for people
	Run   func(ctx context.Context, s *Scene) error
}

// Steps are the story, in its order.
func Steps() []Step {
	return []Step{
		{"FirstService", "A Service is put in place: address, rules, route, first answer", firstService},
		{"FirstAnswer", "How long it takes from the Service to the first answer", firstAnswer},
		{"FirstAnswerAggregate", "The same where the router has a route to the pool already", firstAnswerOfAggregate},
		{"SourceAddress", "externalTrafficPolicy Local: the pod sees the client's own address", sourceAddress},
		{"NextHops", "Who announces: under Local nodes with an endpoint, under Cluster all", nextHopsFollowPolicy},
		{"Cluster", "externalTrafficPolicy Cluster: any pod from any node, masqueraded only where it is remote", clusterPolicy},
		{"IPv6", "All of that over IPv6", overIPv6},
		{"UDP", "UDP", overUDP},
		{"OrderlyMove", "The only endpoint moves to another node, in order, under load", orderlyMove},
		{"AbruptMove", "It moves in one update, and its pod is killed, under load", abruptMove},
		{"Kill", "A speaker is killed and restarted, under load", killSpeaker},
		{"Upgrade", "A speaker is upgraded (SIGTERM, start), under load", upgradeSpeaker},
		{"Flush", "Somebody deletes the table, under load", flushTable},
		{"EarlyPackets", "Packets that come before the rules poison nothing", earlyPackets},
		{"FlowsCluster", "Long-lived connections when a node's last endpoint goes (Cluster)", flowsUnderCluster},
		{"FlowsLocal", "Long-lived connections when a node's last endpoint goes (Local)", flowsUnderLocal},
		{"BadInput", "Mistakes are named, and everything else goes on", badInput},
		{"Withdrawal", "A Service is deleted: the route goes first, the rules later", withdrawal},
		{"Order", "Looking back: no route to a node before its rule, no rule gone before its route", order},
	}
}

// A Scene is where a step plays, with what is to be told about it.
type Scene struct {
	*Lab
	Lines []string
}

// Did says what was done, Saw what was observed.
func (s *Scene) Did(format string, args ...any) { s.tell("did", format, args...) }
func (s *Scene) Saw(format string, args ...any) { s.tell("saw", format, args...) }

func (s *Scene) tell(verb, format string, args ...any) {
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		s.Lines = append(s.Lines, verb+"  "+strings.TrimRight(line, "\n"))
		verb = "   "
	}
}

// Story plays all steps on a lab, and tells them. The error is the first step's
// that did not show what it should; the others are played all the same.
func Story(ctx context.Context, w io.Writer, l *Lab) error {
	var failed []string
	steps := append([]Step{{"Start", "The speakers start", startSpeakers}}, Steps()...)
	for i, step := range append(steps, otherRouter, pulledCable) {
		fmt.Fprintf(w, "\n%2d  %s\n", i+1, step.Title)
		began := time.Now()
		s := &Scene{Lab: l}
		err := step.Run(ctx, s)
		for _, line := range s.Lines {
			fmt.Fprintf(w, "    %s\n", line)
		}
		verdict := "ok"
		if err != nil {
			verdict = "FAILED: " + strings.ReplaceAll(err.Error(), "\n", "\n        ")
			failed = append(failed, step.Name)
		}
		fmt.Fprintf(w, "    %.2f s  %s\n", time.Since(began).Seconds(), verdict)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("not seen: %s; the logs are in %s while the lab is up (make lab KEEP=1)", strings.Join(failed, ", "), l.path("log"))
	}
	return nil
}

func startSpeakers(ctx context.Context, s *Scene) error {
	began := time.Now()
	if err := s.StartSpeakers(ctx, NodeNames...); err != nil {
		return err
	}
	s.Did("`fanfare speaker %s --node-name N` in the namespace of each of %s", strings.Join(s.Cluster.SpeakerArgs(), " "), strings.Join(NodeNames, ", "))
	s.Saw("%s on tor1 has sessions with %s, %.2f s after the start", s.Router.software, strings.Join(NodeNames, ", "), time.Since(began).Seconds())
	return nil
}

// Serve puts a Service in place, and waits until it has an address and the
// router sends that to the nodes that it should.
func (s *Scene) Serve(ctx context.Context, svc Service, nodes ...string) (netip.Addr, error) {
	if err := s.Cluster.Put(svc); err != nil {
		return netip.Addr{}, err
	}
	vip, err := s.AwaitAddress(ctx, "shop/"+svc.Name, false)
	if err != nil {
		return vip, err
	}
	return vip, s.Router.AwaitNextHops(ctx, Settle, vip, nodes...)
}

// Drop deletes a file and waits until the router has no route to the address any
// more. It is for defer, hence the pointer.
func (s *Scene) Drop(ctx context.Context, err *error, file string, vips ...netip.Addr) {
	ctx = context.WithoutCancel(ctx)
	e := s.Cluster.Delete(file)
	if errors.Is(e, fs.ErrNotExist) {
		e = nil
	}
	for _, vip := range vips {
		if e == nil && vip.IsValid() {
			e = s.Router.AwaitNextHops(ctx, Settle, vip)
		}
	}
	if *err == nil {
		*err = e
	}
}

// ms writes a duration with a precision that means something.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
