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

// A Step carries out one promise of Fanfare and checks it. It needs running speakers,
// leaves no Service behind, and can run alone.
type Step struct {
	Name     string // identifier, such as OrderlyMove
	Title    string // for the report
	Expected string // the condition that the step checks
	Run      func(ctx context.Context, s *StepRun) error
}

// Steps returns the steps of the scenario in order.
func Steps() []Step {
	return []Step{
		{"FirstService", "A Service is created", "an address, rules in the kernel, a route, then an answer",
			firstService},
		{"FirstAnswer", "Time from the Service to the first answer",
			"median under the bound, without the router's delay of routes", firstAnswer},
		{"FirstAnswerAggregate", "The same, where the router has a route to the pool",
			"median under the bound, and no change of a route", firstAnswerWithAggregate},
		{"SourceAddress", "externalTrafficPolicy Local: source address", "pods see the client's own address",
			sourceAddress},
		{"NextHops", "Which nodes announce", "Local: nodes with a ready pod; Cluster: all nodes", nextHopsFollowPolicy},
		{"Cluster", "externalTrafficPolicy Cluster",
			"any node reaches any pod; masqueraded only where the pod is on another node", clusterPolicy},
		{"IPv6", "Local and Cluster over IPv6", "the same as over IPv4", overIPv6},
		{"UDP", "UDP", "pods on each node answer, and see the client's own address", overUDP},
		{"OrderlyMove", "The only endpoint moves to another node gracefully, under load",
			"no request lost, except requests that the router moves", orderlyMove},
		{"AbruptMove", "The only endpoint moves in one update and its pod is killed, under load",
			"only requests in flight are lost", abruptMove},
		{"Kill", "A speaker is killed and restarted, under load", "no request lost, no change of the route",
			killSpeaker},
		{"Upgrade", "A speaker is upgraded (SIGTERM, start), under load", "no request lost, no change of the route",
			upgradeSpeaker},
		{"Flush", "Another program deletes the table, under load", "the table is restored within the bound",
			flushTable},
		{"EarlyPackets", "Packets arrive before the rules", "the same client ports are answered afterwards",
			earlyPackets},
		{"FlowsCluster", "Long-lived connections while a node loses its last endpoint (Cluster)",
			"connections that the router leaves on their node stay open", flowsUnderCluster},
		{"FlowsLocal", "Long-lived connections while a node loses its last endpoint (Local)",
			"connections that the router leaves on their node stay open", flowsUnderLocal},
		{"BadInput", "Invalid objects", "each mistake is reported, and all other Services work", badInput},
		{"Withdrawal", "A Service is deleted", "the route is removed first, the rules after the linger time",
			withdrawal},
		{"Order", "Everything since the start",
			"no route to a node before its rules, no rules removed before the route", order},
	}
}

// A StepRun is one run of a step: its lab and its report.
type StepRun struct {
	*Lab
	Actions, Observations []string
}

// Action records what the step did, Observed what it measured or saw.
func (s *StepRun) Action(format string, args ...any) {
	s.Actions = append(s.Actions, fmt.Sprintf(format, args...))
}

func (s *StepRun) Observed(format string, args ...any) {
	s.Observations = append(s.Observations, fmt.Sprintf(format, args...))
}

// addReport appends the report of a step that ran on another lab.
func (s *StepRun) addReport(other *StepRun) {
	s.Actions, s.Observations = append(s.Actions, other.Actions...), append(s.Observations, other.Observations...)
}

// Report returns the text that a test logs about the run.
func (s *StepRun) Report() string {
	return "action: " + strings.Join(s.Actions, "\naction: ") + "\nobservation: " +
		strings.Join(s.Observations, "\nobservation: ")
}

// Scenario runs all steps on a lab and prints them in columns. It continues after a failed
// step; the error names all failed steps.
func Scenario(ctx context.Context, w io.Writer, l *Lab) error {
	var failed []string
	steps := append([]Step{{"Start", "The speakers start", "a BGP session with each node", startSpeakers}}, Steps()...)
	fmt.Fprintf(w, "\n%s", row("STEP", "ACTION", "OBSERVATION", "EXPECTED"))
	for i, step := range append(steps, otherRouter, lostLink) {
		began := time.Now()
		s := &StepRun{Lab: l}
		err := step.Run(ctx, s)
		title := fmt.Sprintf("%d %s\n%s, %.2f s", i+1, step.Title, outcome(err), time.Since(began).Seconds())
		fmt.Fprintf(w, "\n%s", row(title, strings.Join(s.Actions, "\n"), strings.Join(s.Observations, "\n"),
			step.Expected))
		if err != nil {
			fmt.Fprintf(w, "FAILED: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n        "))
			failed = append(failed, step.Name)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed steps: %s; the logs are in %s while the lab is up (make lab KEEP=1)",
			strings.Join(failed, ", "), l.path("log"))
	}
	return nil
}

func outcome(err error) string {
	if err != nil {
		return "FAILED"
	}
	return "ok"
}

func startSpeakers(ctx context.Context, s *StepRun) error {
	began := time.Now()
	if err := s.StartSpeakers(ctx, NodeNames...); err != nil {
		return err
	}
	s.Action("`fanfare speaker %s --node-name N` in the namespace of each of %s",
		strings.Join(s.Cluster.SpeakerArgs("N"), " "), strings.Join(NodeNames, ", "))
	s.Observed("%s on tor1 has sessions with %s, %.2f s after the start", s.Router.software,
		strings.Join(NodeNames, ", "), time.Since(began).Seconds())
	return nil
}

// Serve creates a Service, and waits until it has an address and the router routes the
// address to the given nodes.
func (s *StepRun) Serve(ctx context.Context, svc Service, nodes ...string) (netip.Addr, error) {
	if err := s.Cluster.Put(svc); err != nil {
		return netip.Addr{}, err
	}
	vip, err := s.AwaitAddress(ctx, "shop/"+svc.Name, false)
	if err != nil {
		return vip, err
	}
	return vip, s.Router.AwaitNextHops(ctx, Settle, vip, nodes...)
}

// Drop deletes a file and waits until the router has no routes to the addresses. It is made
// for defer, hence the pointer to the error.
func (s *StepRun) Drop(ctx context.Context, err *error, file string, vips ...netip.Addr) {
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

// ms formats a duration in milliseconds with one decimal.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
