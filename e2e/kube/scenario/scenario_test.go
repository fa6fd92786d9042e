package scenario

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var oldest = flag.Bool("oldest", false, "run the oldest Kubernetes that works with Fanfare")

// A cluster is a laboratory with a control plane. Its methods are the steps that differ
// from e2e/lab.
type cluster struct{ *kube.Lab }

// TestScenario runs the scenario of e2e/lab with a real control plane, and with kube-proxy
// beside the speakers in each of its modes.
func TestScenario(t *testing.T) {
	l := laboratory(t)
	for _, mode := range []kube.ProxyMode{kube.NFTables, kube.IPTables} {
		t.Run(string(mode), func(t *testing.T) {
			must(t, l.StartProxies(t.Context(), mode))
			t.Cleanup(func() { must(t, l.StopProxies(context.WithoutCancel(t.Context()))) })
			for _, step := range l.steps(mode) {
				t.Run(step.Name, func(t *testing.T) { l.runStep(t, step) })
			}
		})
	}
}

// routeSteps are steps about announced routes. They run in one mode of kube-proxy, which
// does not affect them.
var routeSteps = []string{"FirstAnswer", "FirstAnswerAggregate", "NextHops", "OrderlyMove", "Kill", "Upgrade",
	"BadInput", "Withdrawal"}

// steps returns the laboratory's steps, some of them replaced, and the steps for a cluster
// with kube-proxy.
func (l cluster) steps(mode kube.ProxyMode) []lab.Step {
	instead := map[string]func(context.Context, *lab.StepRun) error{
		"FirstAnswer": l.firstAnswer, "OrderlyMove": l.orderlyMove, "BadInput": l.badInput,
	}
	var steps []lab.Step
	for _, s := range lab.Steps() {
		if s.Name == "Withdrawal" {
			steps = append(steps,
				lab.Step{
					Name: "Beside", Title: "kube-proxy serves ClusterIP and NodePort, Fanfare the address",
					Run: l.besideKubeProxy(mode),
				},
				lab.Step{
					Name: "Without", Title: "kube-proxy without Fanfare's table on a node, and Fanfare's return",
					Run: l.withoutTable,
				},
			)
			// It takes long and is the same in either mode. It comes last, because Kubernetes'
			// controllers need a minute to reconnect.
			if mode == kube.IPTables {
				steps = append(steps, lab.Step{
					Name: "Outage", Title: "The API server is down for 20 s, and a speaker is killed " +
						"meanwhile, under load", Run: l.outage,
				})
			}
		}
		if mode == kube.IPTables && slices.Contains(routeSteps, s.Name) {
			continue
		}
		if run := instead[s.Name]; run != nil {
			s.Run = run
		}
		steps = append(steps, s)
	}
	return steps
}

// runStep runs a step, and logs its report.
func (l cluster) runStep(t *testing.T, step lab.Step) {
	must(t, l.StartSpeakers(t.Context(), lab.NodeNames...))
	s := &lab.StepRun{Lab: l.Lab.Lab}
	err := step.Run(t.Context(), s)
	t.Log(step.Title + "\n" + s.Report())
	if err != nil {
		t.Error(err)
	}
}

// laboratory builds a lab for a test, with a binary of the current source.
func laboratory(t *testing.T) cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a laboratory with a control plane takes minutes")
	}
	if err := lab.Missing("iptables"); err != nil {
		nstest.Missing(t, err.Error())
	}
	find := kube.Tools
	if *oldest {
		find = kube.Oldest
	}
	tools, err := find(t.Context(), true)
	must(t, err)
	fanfare := filepath.Join(t.TempDir(), "fanfare")
	must(t, binary.Build(t.Context(), fanfare))
	l, err := kube.UpLab(t.Context(), kube.LabOptions{
		ID: fmt.Sprintf("k%d", os.Getpid()), Source: "../../..", Fanfare: fanfare, Tools: tools,
	})
	must(t, err)
	t.Cleanup(func() { must(t, l.Down()) })
	version, err := l.Kubernetes.Admin().Version()
	must(t, err)
	t.Log("the API server is of Kubernetes " + version)
	return cluster{l}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
