package l2

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// manyAddresses are outside of the nodes' subnets, which are too small for a thousand. The
// L2Advertisement therefore names the interface.
const manyAddresses = `apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: many}
spec: {announce: Advertised, addresses: [10.99.0.0/22], allocation: OnRequest}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: many}
spec: {pools: [many], interfaces: [eth1]}
`

// A rest holds the speakers' resource usage while nothing changes.
type rest struct {
	// Without and With are the CPU shares of all three speakers, without and with the
	// addresses.
	Without, With float64
	// The packets that all three nodes send per second.
	PacketsWithout, PacketsWith float64
	RSS                         int64 // maximum of one speaker
	Spread                      []int // number of addresses announced by each node
}

func atRest(ctx context.Context, l *lab.Lab, o options) (r rest, err error) {
	if r.Without, r.PacketsWithout, err = usage(ctx, l, o.rest); err != nil {
		return r, err
	}
	if err := l.Cluster.PutText("many", manyAddresses); err != nil {
		return r, err
	}
	var services []lab.Service
	addr := netip.MustParseAddr("10.99.0.1")
	for n := range o.addresses {
		services = append(services, lab.Service{
			Name: fmt.Sprintf("many%04d", n), Ask: []netip.Addr{addr}, Endpoints: lab.At("p11", "p21", "p31"),
		})
		addr = addr.Next()
	}
	if err := l.Cluster.Put(services...); err != nil {
		return r, err
	}
	err = lab.Await(ctx, 5*time.Minute, "announcement of all addresses", func() (err error) {
		r.Spread, err = answered(ctx, l)
		if sum := total(r.Spread); err == nil && sum != o.addresses {
			err = fmt.Errorf("%d of %d are", sum, o.addresses)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	// The last gratuitous packets follow the first by 7.5 s.
	if err := measure.Pause(ctx, 10*time.Second); err != nil {
		return r, err
	}
	if r.With, r.PacketsWith, err = usage(ctx, l, o.rest); err != nil {
		return r, err
	}
	for _, n := range lab.NodeNames {
		u, err := measure.UsageOf(n, l.Speaker(n).PID())
		if err != nil {
			return r, err
		}
		r.RSS = max(r.RSS, u.RSS)
	}
	return r, nil
}

// answered counts the addresses that each node announces.
func answered(ctx context.Context, l *lab.Lab) (spread []int, err error) {
	for _, node := range lab.NodeNames {
		st, err := l.Speaker(node).Status(ctx)
		if err != nil {
			return nil, err
		}
		n := 0
		for _, a := range st.Addresses {
			if a.Announced && strings.HasPrefix(a.Address.String(), "10.99.") {
				n++
			}
		}
		spread = append(spread, n)
	}
	return spread, nil
}

func total(list []int) (sum int) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// usage returns the CPU share of all speakers and the packets per second of their nodes
// over a time.
func usage(ctx context.Context, l *lab.Lab, span time.Duration) (core, packets float64, err error) {
	before, sent, err := readUsage(l)
	if err != nil {
		return 0, 0, err
	}
	if err := measure.Pause(ctx, span); err != nil {
		return 0, 0, err
	}
	after, sentAfter, err := readUsage(l)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range measure.Shares(before, after, span) {
		core += s.Core
	}
	return core, float64(sentAfter-sent) / span.Seconds(), nil
}

func readUsage(l *lab.Lab) (all []measure.Usage, sent uint64, err error) {
	for _, n := range lab.NodeNames {
		u, err := measure.UsageOf(n, l.Speaker(n).PID())
		if err != nil {
			return nil, 0, err
		}
		packets, err := l.PacketsSent(n)
		if err != nil {
			return nil, 0, err
		}
		all, sent = append(all, u), sent+packets
	}
	return all, sent, nil
}
