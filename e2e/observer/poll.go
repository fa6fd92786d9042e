package observer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// pollInterval is the time between two readings of a node's sets.
	pollInterval = 20 * time.Millisecond
	// polledSet is the set of the iptables mode that an address enters after all its rules, and
	// leaves before them.
	polledSet = "fanfare-vips4"
)

// PollSets records the addresses that nodes forward in iptables mode. The kernel sends no
// notification about sets, so they are read again and again. An address counts from the last
// reading without it and until the first one without it, so that a recorded violation is one.
func (o *Observer) PollSets() error {
	ctx, cancel := context.WithCancel(context.Background())
	o.polls = cancel
	for node, n := range o.config.Nodes {
		var h *netlink.Handle
		err := n.Do(func() (err error) {
			h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
			return err
		})
		if err != nil {
			return err
		}
		o.polling.Go(func() {
			defer h.Close()
			o.pollSet(ctx, h, node)
		})
	}
	return nil
}

func (o *Observer) pollSet(ctx context.Context, h *netlink.Handle, node string) {
	var had []netip.Addr
	before := time.Now()
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		began := time.Now()
		has, err := readSet(h)
		if err != nil {
			o.fail(err)
			return
		}
		added, removed := tableEvent{at: before, node: node}, tableEvent{at: time.Now(), node: node}
		for _, vip := range has {
			if !slices.Contains(had, vip) {
				added.changes = append(added.changes, polledChanges(vip, true)...)
			}
		}
		for _, vip := range had {
			if !slices.Contains(has, vip) {
				removed.changes = append(removed.changes, polledChanges(vip, false)...)
			}
		}
		o.mu.Lock()
		for _, e := range []tableEvent{added, removed} {
			if len(e.changes) > 0 {
				o.tables = append(o.tables, e)
			}
		}
		o.mu.Unlock()
		had, before = has, began
	}
}

func polledChanges(vip netip.Addr, added bool) []change {
	return []change{{in: frontends, key: frontendKey{vip: vip, protocol: unix.IPPROTO_TCP}, added: added,
		forwards: true},
		{in: vips, key: frontendKey{vip: vip}, added: added}}
}

// readSet returns the addresses in the set; none if there is no set.
func readSet(h *netlink.Handle) (all []netip.Addr, err error) {
	set, err := h.IpsetList(polledSet)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range set.Entries {
		if a, ok := netip.AddrFromSlice(e.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	return all, nil
}
