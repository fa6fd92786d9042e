package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// The table's room is shared by dynamic thresholds (Choudhury and Hahne, as switches share their
// buffers): an address may have as many flows as the table has room for more. One address gets
// at most half of the table, two a third each, and there is always room for the next one. So a
// flood at one address neither evicts flows of another nor blocks its new ones.
//
// The programs count flows that they begin, and each walk corrects the counts. A count that is
// not exact, because a flow began while it was written, lasts until the next walk.

// A Limit is an address that has as many flows as it may have.
type Limit struct {
	Addr     netip.Addr
	Flows    int    // at the last walk
	Rejected uint64 // new flows that the rules got, since the address came to the fast path
}

// usage is what a Datapath knows of an address with taken frontends.
type usage struct {
	flows    int
	rejected uint32 // as in the map
	// limited says that new flows were rejected, and that the flows have not halved since.
	limited bool
}

// limitedWhy is why new flows of an address are left to the rules.
const limitedWhy = "its address has as many flows as the table has room for others"

// admit lets an address have flows. It must come before a frontend of it is taken.
func (p *Datapath) admit(vip kernelAddress) error {
	if p.usages[vip] != nil {
		return nil
	}
	err := p.kernel.Usages.Update(vip, kernelUsage{}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	p.usages[vip] = &usage{}
	return nil
}

// adoptUsages reads the map, and admits the addresses of frontends that an earlier process took
// and did not count.
func (p *Datapath) adoptUsages() error {
	all, err := p.readUsages()
	for vip, u := range all {
		p.usages[vip] = &usage{flows: int(u.Flows), rejected: u.Rejected}
	}
	errs := []error{err}
	for key := range p.offloaded {
		errs = append(errs, p.admit(key.Address))
	}
	return errors.Join(errs...)
}

// readUsages returns the content of the map usages.
func (p *Datapath) readUsages() (map[kernelAddress]kernelUsage, error) {
	found := make(map[kernelAddress]kernelUsage)
	err := eachEntry(p.kernel.Usages, func(vip kernelAddress, u *kernelUsage) { found[vip] = *u })
	return found, err
}

// readRoom returns for how many more flows the table has room, as the programs know it.
func (p *Datapath) readRoom() (n int32, err error) {
	err = p.kernel.Room.Lookup(uint32(0), &n)
	return n, err
}

// counts is what the programs have counted at one moment.
type counts struct {
	usages map[kernelAddress]kernelUsage
	room   int32
}

func (p *Datapath) readCounts() (c counts, err error) {
	var err2 error
	c.usages, err = p.readUsages()
	c.room, err2 = p.readRoom()
	return c, errors.Join(err, err2)
}

// correct writes the counts of a walk to the maps. Flows that began meanwhile may have been seen
// or not: they count in addition, so that there are never more flows than counted.
func (p *Datapath) correct(w *walk) error {
	now, err := p.readCounts()
	if err != nil {
		return fmt.Errorf("read the numbers of flows: %w", err)
	}
	var errs []error
	for vip, u := range now.usages {
		flows := int32(w.used[vip]) + u.Flows - w.before.usages[vip].Flows
		if flows == u.Flows {
			continue
		}
		err := p.kernel.Usages.Update(vip, kernelUsage{Flows: flows, Rejected: u.Rejected}, ebpf.UpdateExist)
		errs = append(errs, ignoreNotExist(err))
	}
	room := int32(p.room-w.flows) + now.room - w.before.room
	if room != now.room {
		errs = append(errs, p.kernel.Room.Put(uint32(0), room))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.forgetUsages(), p.limit(now.usages, w, int(room)))...)
}

// forgetUsages deletes addresses without taken frontends, if frontends have gone.
func (p *Datapath) forgetUsages() error {
	if !p.usagesStale {
		return nil
	}
	p.usagesStale = false
	used := make(map[kernelAddress]bool)
	for key := range p.offloaded {
		used[key.Address] = true
	}
	var errs []error
	for vip, u := range p.usages {
		if used[vip] {
			continue
		}
		if u.limited {
			p.usagesStale = true // until its frontends may come back
			continue
		}
		delete(p.usages, vip)
		errs = append(errs, ignoreNotExist(p.kernel.Usages.Delete(vip)))
	}
	return errors.Join(errs...)
}

// limit finds the addresses that have as many flows as they may have. Their UDP frontends are
// left to the rules until their flows have halved: a datagram does not show whether conntrack
// has its flow, so that with each bit of room, a flow of the rules would get another backend.
func (p *Datapath) limit(now map[kernelAddress]kernelUsage, w *walk, room int) error {
	changed := false
	p.pressed = make(map[kernelAddress]bool)
	for vip, u := range p.usages {
		had := *u
		u.flows = w.used[vip]
		if is, found := now[vip]; found {
			u.limited = u.limited && 2*u.flows > room || is.Rejected != u.rejected
			u.rejected = is.Rejected
		} else {
			u.limited = false
		}
		if u.limited || 2*u.flows > room {
			p.pressed[vip] = true
		}
		if u.limited != had.limited {
			changed = true
			p.logLimit(vip, u)
			p.redo(func(key kernelFrontend) bool { return key.Address == vip && key.Protocol == UDP })
		}
	}
	if !changed || !p.grown {
		return nil
	}
	return p.apply(p.changedFrontends(&p.want))
}

func (p *Datapath) logLimit(vip kernelAddress, u *usage) {
	if u.limited {
		p.log.Info("fast path leaves new flows of an address to the rules", "vip", vip.addr(), "flows", u.flows, "reason", limitedWhy)
		return
	}
	p.log.Info("fast path takes new flows of an address again", "vip", vip.addr(), "flows", u.flows)
}

// limits is Status.Limited.
func (p *Datapath) limits() []Limit {
	var all []Limit
	for vip, u := range p.usages {
		if u.limited {
			all = append(all, Limit{vip.addr(), u.flows, uint64(u.rejected)})
		}
	}
	slices.SortFunc(all, func(a, b Limit) int { return a.Addr.Compare(b.Addr) })
	return all
}

// spare returns how many flows may be added to an address, of which the maps do not know yet.
func (p *Datapath) spare(vip kernelAddress) int {
	var u kernelUsage
	room, err := p.readRoom()
	if err = errors.Join(err, p.kernel.Usages.Lookup(vip, &u)); err != nil {
		return 0
	}
	return max(int(room-u.Flows)/2, 0) // each adds to the one and takes from the other
}
