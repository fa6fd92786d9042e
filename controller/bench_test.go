package controller

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// many makes a store with n Services and as many addresses.
func many(b *testing.B, n int) *store {
	s := newStore(b)
	w := &world{store: s}
	pool := from(b, map[string]any{
		"metadata": object{"name": "big"},
		"spec":     object{"addresses": []string{"10.0.0.0/16"}, "announce": "BGP"},
	})
	s.put("/apis/fanfare.io/v1alpha1/addresspools/big", nil, pool)
	for i := range n {
		name := fmt.Sprintf("s%05d", i)
		s.put(servicesPath+name, nil, from(b, w.service(name)))
	}
	return s
}

// BenchmarkUnchanged is a pass without a write: the cost of every change of
// any Service besides its own writes.
func BenchmarkUnchanged(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(b, n)
			c, err := newController(options(s))
			if err != nil {
				b.Fatal(err)
			}
			c.source = s.source()
			c.carryOut(b.Context(), planned(c.source.Snapshot()), time.Now().Add(time.Hour))
			snap := s.source().Snapshot()
			allocator := ipam.NewAllocator(snap, settled)
			for b.Loop() {
				next := *snap
				allocator = allocator.Next(&next)
				as, reasons := allocator.Allocate(time.Time{})
				if t := plan(allocator, as, reasons, nil, time.Time{}); len(t.updates)+len(t.gone)+
					len(t.leftover) != 0 {
					b.Fatal(t)
				}
			}
		})
	}
}

// BenchmarkPass is a whole pass after one change of one Service that needs no write, with the
// 99th percentile of its duration and the CPU time of the process for each.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(b, n)
			c, err := newController(options(s))
			if err != nil {
				b.Fatal(err)
			}
			c.source = s.source()
			c.carryOut(b.Context(), planned(c.source.Snapshot()), time.Now().Add(time.Hour))
			snap := s.source().Snapshot()
			if snap.Assignments.Len() != n {
				b.Fatalf("%d Services have an address", snap.Assignments.Len())
			}
			source := &fixedSource{snapshot: snap}
			c.source = source
			c.pass(b.Context())
			b.ReportAllocs()
			var passes []time.Duration
			before := cpuTime(b)
			for i := 0; b.Loop(); i++ {
				next, changed := *snap, snap.Services.At(i%n)
				changed.Spec = new(*changed.Spec)
				next.Services = snap.Services.With(changed)
				source.snapshot = &next
				began := time.Now()
				if _, errs := c.pass(b.Context()); len(errs) != 0 {
					b.Fatal(errs[0])
				}
				passes = append(passes, time.Since(began))
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
			slices.Sort(passes)
			b.ReportMetric(float64(passes[len(passes)*99/100])/1e6, "p99-ms")
		})
	}
}

// cpuTime returns the CPU time of this process, with that of the garbage collector.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A fixedSource returns the given snapshot.
type fixedSource struct{ snapshot *cluster.Snapshot }

func (s *fixedSource) Snapshot() *cluster.Snapshot { return s.snapshot }
func (s *fixedSource) Changed() <-chan struct{}    { return nil }

// BenchmarkStart gives addresses to 1,000 Services that have none, with an API
// server that answers at once: the controller's own part of it.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := many(b, 1_000)
		c, err := newController(options(s))
		if err != nil {
			b.Fatal(err)
		}
		c.source = s.source()
		b.StartTimer()
		if _, errs := c.carryOut(b.Context(), planned(c.source.Snapshot()), time.Now().Add(time.Hour)); len(errs) != 0 {
			b.Fatal(errs[0])
		}
	}
}

func planned(snap *cluster.Snapshot) writePlan {
	as, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	return plan(ipam.NewAllocator(snap, settled), as, reasons, nil, time.Time{})
}
