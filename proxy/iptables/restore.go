package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// script returns the input for iptables-restore, and how many tables it changes: each COMMIT is a
// transaction. New rules and jumps come before deleted chains, which must be empty and without
// references. The text is the same for the same plan.
func (p xtPlan) script() (text string, tables int) {
	var b strings.Builder
	order := xtTables
	if p.repairs {
		order = xtRepaired
	}
	for _, table := range order {
		write, drop, flush, jumps := p.write[table], p.drop[table], p.flush[table], p.jumps[table]
		if len(write) == 0 && len(drop) == 0 && len(flush) == 0 && len(jumps) == 0 {
			continue
		}
		tables++
		names := slices.Sorted(maps.Keys(write))
		fmt.Fprintf(&b, "*%s\n", table)
		for _, name := range names {
			// With --noflush, this line creates the chain, or empties it if it exists.
			fmt.Fprintf(&b, ":%s - [0:0]\n", name)
		}
		for _, name := range names {
			for _, rule := range write[name] {
				fmt.Fprintf(&b, "-A %s %s\n", name, rule)
			}
		}
		for _, line := range jumps {
			fmt.Fprintln(&b, line)
		}
		slices.Sort(drop)
		for _, name := range slices.Concat(flush, drop) {
			fmt.Fprintf(&b, "-F %s\n", name)
		}
		for _, name := range drop {
			fmt.Fprintf(&b, "-X %s\n", name)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String(), tables
}

// maxFreed bounds how many rules with a BPF program (-m bpf) one transaction deletes. Linux 6.18
// deadlocks for good if more than 1,024 are deleted at once: see maxPrograms in package state.
const maxFreed = 256

// freedBy returns how many rules have a BPF program.
func freedBy(rules []string) (n int) {
	for _, r := range rules {
		if strings.Contains(r, "-m bpf ") {
			n++
		}
	}
	return n
}

// parts splits a plan so that no part deletes more than most BPF programs with the chains of Drop,
// unless a single chain has more. Chains that are replaced do not count. Chains are emptied in
// parts and deleted in the last part, because until then one may lead to another.
func (p xtPlan) parts(most int) []xtPlan {
	total := 0
	for _, n := range p.frees {
		total += n
	}
	if total <= most {
		return []xtPlan{p}
	}
	var all []xtPlan
	part, freed := p, 0
	part.drop, part.flush = nil, make(map[string][]string)
	for _, table := range xtTables {
		for _, name := range slices.Sorted(slices.Values(p.drop[table])) {
			n := p.frees[name]
			if n == 0 {
				continue
			}
			if freed > 0 && freed+n > most {
				all = append(all, part)
				part, freed = xtPlan{flush: make(map[string][]string)}, 0
			}
			part.flush[table] = append(part.flush[table], name)
			freed += n
		}
	}
	return append(all, part, xtPlan{drop: p.drop})
}

// runParts calls run with the input for each part of a plan, and stops at the first error.
func (p xtPlan) runParts(run func(script string, tables int) error) error {
	for i, part := range p.parts(maxFreed) {
		if i > 0 {
			// The kernel frees deleted rules only after a grace period. Without waiting, those of
			// several parts would be freed together.
			nfnl.AwaitPackets()
		}
		if script, tables := part.script(); script != "" {
			if err := run(script, tables); err != nil {
				return err
			}
		}
	}
	return nil
}

// load runs iptables-restore without receiving the notifications of its changes, one transaction
// per table.
func (x *Renderer) load(ctx context.Context, f state.SetID, script string, tables int) error {
	i := x.Programs[f]
	run := func() error { return i.load(ctx, script) }
	if i.Legacy() {
		return run() // it sends no notifications
	}
	return x.IgnoringOwn(x.Sock, uint32(tables), run)
}
