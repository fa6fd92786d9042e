package l2

import (
	"context"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A created holds the times from the creation of a Service to the host's first answer from its
// address, which no node held before.
type created struct {
	Family string
	// Begins is for a host that begins to connect when the Service is created, Waits for one that
	// has been trying for a while. The kernel of either repeats its request for the hardware
	// address once a second.
	Begins, Waits measure.Sample
}

// waited is how long the host has been trying, in Waits: between two of its kernel's requests. The
// last Service was deleted before that.
const waited = 1500 * time.Millisecond

// create creates Services one after the other, each with an address of its own: the host must not
// have it in its neighbour table.
func create(ctx context.Context, l *lab.Lab, runs int) ([]created, error) {
	all := []created{{Family: "IPv4"}, {Family: "IPv6"}}
	for i, first := range []string{"198.51.100.201", "2001:db8:51::201"} {
		addr := netip.MustParseAddr(first)
		for range runs {
			for _, x := range []struct {
				ahead time.Duration
				to    *measure.Sample
			}{{0, &all[i].Begins}, {waited, &all[i].Waits}} {
				took, err := createOne(ctx, l, addr, x.ahead)
				if err != nil {
					return nil, err
				}
				*x.to = append(*x.to, took)
				addr = addr.Next()
			}
		}
	}
	return all, nil
}

// createOne creates a Service after the host has been trying its address for some time, waited at
// most.
func createOne(ctx context.Context, l *lab.Lab, vip netip.Addr, ahead time.Duration) (time.Duration, error) {
	svc := lab.Service{Name: "new", Ask: []netip.Addr{vip}, Endpoints: lab.At(lab.PodNames...)}
	if vip.Is6() {
		svc.Families = []corev1.IPFamily{corev1.IPv6Protocol}
	}
	if err := measure.Pause(ctx, waited-ahead); err != nil {
		return 0, err
	}
	type answer struct {
		at  time.Time
		err error
	}
	first := make(chan answer, 1)
	go func() {
		at, err := l.Host().FirstAnswer(ctx, netip.AddrPortFrom(vip, 80))
		first <- answer{at, err}
	}()
	if err := measure.Pause(ctx, ahead); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := l.Cluster.Put(svc); err != nil {
		return 0, err
	}
	got := <-first
	if got.err != nil {
		return 0, got.err
	}
	return got.at.Sub(begin), l.Cluster.Delete(svc.Name)
}
