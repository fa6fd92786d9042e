package fastpath

import (
	"errors"
	"fmt"
	"log/slog"
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

// usages are the addresses that have taken frontends.
type usages struct {
	kernel *objects
	of     map[kernelAddress]*usage
	stale  bool // some may have no taken frontend
	// pressed have more than half of the flows that they may have, at the last walk.
	pressed map[kernelAddress]bool
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
func (u *usages) admit(vip kernelAddress) error {
	if u.of[vip] != nil {
		return nil
	}
	err := u.kernel.Usages.Update(vip, kernelUsage{}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	u.of[vip] = &usage{}
	return nil
}

// adopt reads the map, and admits the addresses of frontends that an earlier process took
// and did not count.
func (u *usages) adopt(taken map[kernelFrontend]*offloadedFrontend) error {
	all, err := u.kernel.readUsages()
	for vip, is := range all {
		u.of[vip] = &usage{flows: int(is.Flows), rejected: is.Rejected}
	}
	errs := []error{err}
	for key := range taken {
		errs = append(errs, u.admit(key.Address))
	}
	return errors.Join(errs...)
}

// readUsages returns the content of the map usages.
func (o *objects) readUsages() (map[kernelAddress]kernelUsage, error) {
	found := make(map[kernelAddress]kernelUsage)
	err := eachEntry(o.Usages, func(vip kernelAddress, u *kernelUsage) { found[vip] = *u })
	return found, err
}

// readRoom returns for how many more flows the table has room, as the programs know it.
func (o *objects) readRoom() (n int32, err error) {
	err = o.Room.Lookup(uint32(0), &n)
	return n, err
}

// counts is what the programs have counted at one moment.
type counts struct {
	usages map[kernelAddress]kernelUsage
	room   int32
}

func (o *objects) readCounts() (c counts, err error) {
	var err2 error
	c.usages, err = o.readUsages()
	c.room, err2 = o.readRoom()
	return c, errors.Join(err, err2)
}

// correct writes the counts of a walk to the maps, and returns the counts before that, none if it could not read them.
// Flows that began meanwhile may have been seen or not: they count in addition, so that there are never more flows than
// counted.
func (o *objects) correct(w *walk) (now counts, room int, err error) {
	now, err = o.readCounts()
	if err != nil {
		return counts{}, 0, fmt.Errorf("read the numbers of flows: %w", err)
	}
	var errs []error
	for vip, u := range now.usages {
		flows := int32(w.used[vip]) + u.Flows - w.before.usages[vip].Flows
		if flows == u.Flows {
			continue
		}
		err := o.Usages.Update(vip, kernelUsage{Flows: flows, Rejected: u.Rejected}, ebpf.UpdateExist)
		errs = append(errs, ignoreNotExist(err))
	}
	left := int32(o.room-w.flows) + now.room - w.before.room
	if left != now.room {
		errs = append(errs, o.Room.Put(uint32(0), left))
	}
	return now, int(left), errors.Join(errs...)
}

// correct writes the counts of a walk, and applies which addresses have as many flows as they may have.
func (d *Datapath) correct(w *walk) error {
	now, room, err := d.kernel.correct(w)
	if now.usages == nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := []error{err, d.usages.forget(d.table.frontends)}
	changed := d.usages.limit(now.usages, w, room)
	for _, vip := range changed {
		d.usages.of[vip].log(d.log, vip)
		d.redo(func(key kernelFrontend) bool { return key.Address == vip && key.Protocol == UDP })
	}
	if len(changed) > 0 && d.grown {
		errs = append(errs, d.apply(d.changedFrontends(&d.want)))
	}
	return errors.Join(errs...)
}

// forget deletes addresses without taken frontends, if frontends have gone.
func (u *usages) forget(taken map[kernelFrontend]*offloadedFrontend) error {
	if !u.stale {
		return nil
	}
	u.stale = false
	used := make(map[kernelAddress]bool)
	for key := range taken {
		used[key.Address] = true
	}
	var errs []error
	for vip, is := range u.of {
		if used[vip] {
			continue
		}
		if is.limited {
			u.stale = true // until its frontends may come back
			continue
		}
		delete(u.of, vip)
		errs = append(errs, ignoreNotExist(u.kernel.Usages.Delete(vip)))
	}
	return errors.Join(errs...)
}

// limit finds the addresses that have as many flows as they may have, and returns those of which this has
// changed. Their UDP frontends are left to the rules until their flows have halved: a datagram does not
// show whether conntrack has its flow, so that with each bit of room, a flow of the rules would get
// another backend.
func (u *usages) limit(now map[kernelAddress]kernelUsage, w *walk, room int) (changed []kernelAddress) {
	u.pressed = make(map[kernelAddress]bool)
	for vip, is := range u.of {
		had := *is
		is.flows = w.used[vip]
		if count, found := now[vip]; found {
			is.limited = is.limited && 2*is.flows > room || count.Rejected != is.rejected
			is.rejected = count.Rejected
		} else {
			is.limited = false
		}
		if is.limited || 2*is.flows > room {
			u.pressed[vip] = true
		}
		if is.limited != had.limited {
			changed = append(changed, vip)
		}
	}
	return changed
}

func (u *usage) log(log *slog.Logger, vip kernelAddress) {
	if u.limited {
		log.Info("fast path leaves new flows of an address to the rules", "vip", vip.addr(), "flows", u.flows, "reason",
			limitedWhy)
		return
	}
	log.Info("fast path takes new flows of an address again", "vip", vip.addr(), "flows", u.flows)
}

// limits is Status.Limited.
func (u *usages) limits() []Limit {
	var all []Limit
	for vip, is := range u.of {
		if is.limited {
			all = append(all, Limit{vip.addr(), is.flows, uint64(is.rejected)})
		}
	}
	slices.SortFunc(all, func(a, b Limit) int { return a.Addr.Compare(b.Addr) })
	return all
}

// spare returns how many flows may be added to an address, of which the maps do not know yet.
func (o *objects) spare(vip kernelAddress) int {
	var u kernelUsage
	room, err := o.readRoom()
	if err = errors.Join(err, o.Usages.Lookup(vip, &u)); err != nil {
		return 0
	}
	return max(int(room-u.Flows)/2, 0) // each adds to the one and takes from the other
}
