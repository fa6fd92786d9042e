package proxy

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A ruleset is the rules in the kernel, and what is known of them.
type ruleset struct {
	log      *slog.Logger
	metrics  *metrics
	record   *record
	watched  *integrity
	mode     Mode // the mode that choose selected
	renderer renderer.Renderer

	have     State         // the State that was set last
	known    bool          // the kernel holds have, as far as notifications show
	written  bool          // a change has succeeded
	mark     uint64        // of watched, taken before the kernel is read
	elements int           // of have, if known
	entries  int           // of have's addresses, as Limits count them
	replies  state.Replies // of have
	// damage describes other programs' changes to our rules, until all of them are repaired: a
	// failed attempt may have repaired some.
	damage string
}

// An outcome is what a change leaves behind: conntrack entries that have become wrong, and, if the rules were
// not complete before, flows that bypassed them.
type outcome struct {
	stale  conntrack.StaleEntries
	leaked bool
}

// set makes the kernel forward a valid State: by the differences from the last one or, with read or if the
// kernel's state is unknown, by what the kernel holds.
func (r *ruleset) set(ctx context.Context, want State, read bool) (outcome, error) {
	if read || !r.known || want.Node != r.have.Node {
		return r.reconcile(ctx, want)
	}
	vips := state.DiffVIPs(r.have.VIPs, want.VIPs)
	c := state.DiffStates(r.have, want, vips, r.replies)
	if c.Empty() && len(vips) == 0 && slices.Equal(r.have.Redirects, want.Redirects) {
		r.have = want
		return outcome{}, nil
	}
	// Even without changed elements, the renderer decides: a chain's name may change.
	switch err := r.renderer.Update(ctx, renderer.Step{Have: r.have, Want: want, VIPs: vips, Elements: c}); {
	case isStale(err):
		r.metrics.retries.Inc()
		return r.reconcile(ctx, want)
	case err != nil:
		r.known = false
		return outcome{}, err
	}
	r.holds(want, r.elements+len(c.Add)-len(c.Del))
	return outcome{stale: conntrack.StaleAfter(c)}, nil
}

// holds records that the kernel holds want.
func (r *ruleset) holds(want State, elements int) {
	for _, c := range state.DiffVIPs(r.have.VIPs, want.VIPs) {
		r.entries += c.Want.Entries(r.mode) - c.Have.Entries(r.mode)
		r.replies.Record(c)
	}
	r.have, r.known, r.written, r.elements = want, true, true, elements
	r.metrics.elements.Set(float64(elements))
	r.metrics.vips.Set(float64(want.VIPs.Len()))
}

// maxAttempts limits how often a change starts over because another program changes our table
// meanwhile.
const maxAttempts = 5

// reconcile reads the kernel's table and changes it to want.
func (r *ruleset) reconcile(ctx context.Context, want State) (out outcome, err error) {
	// A difference means that another program interfered only if the kernel is known to have held
	// have.
	expected := r.known
	r.known = false
	for attempt := range maxAttempts {
		if attempt > 0 {
			r.metrics.retries.Inc()
		}
		var next outcome
		next, err = r.converge(ctx, want, expected)
		out = outcome{next.stale, out.leaked || next.leaked}
		if !isStale(err) {
			break
		}
	}
	return out, err
}

func (r *ruleset) converge(ctx context.Context, want State, expected bool) (outcome, error) {
	var have *State
	if expected {
		have = &r.have
	}
	out, err := r.renderer.Converge(ctx, have, want)
	left := outcome{leaked: out.Leaked}
	if expected && r.damage == "" {
		r.damage = out.Found
	}
	if err != nil {
		return left, err
	}
	r.watched.confirm(r.mark, time.Now())
	all := state.RenderState(want)
	r.holds(want, len(all))
	left.stale = conntrack.StaleAfter(state.DiffElements(out.Had, all))
	if !expected {
		left.stale.AddAdopted(out.Had)
	}
	if r.damage != "" {
		r.metrics.repairs.Inc()
		r.record.update(func(s *Status) { s.Repairs, s.LastRepair, s.Found = s.Repairs+1, time.Now(), r.damage })
		r.log.WarnContext(ctx, "repaired the rules", "reason", r.damage)
		r.damage = ""
	}
	return left, nil
}

// examine follows a failed change. If changes of the rules were reported, it checks whether the rules
// differ: another program may have undone its change, notifications may have been lost, and the
// wanted change itself may have failed.
func (r *ruleset) examine(ctx context.Context) {
	if r.damage != "" {
		r.watched.doubt(r.damage, time.Now()) // found without a report
	}
	if r.watched.get().Intact || !r.written {
		return
	}
	mark := r.watched.mark()
	switch found, err := r.renderer.Differs(ctx, r.have); {
	case err != nil: // nothing more than the reports is known
	case found != "":
		r.watched.specify(found)
	default:
		r.watched.confirm(mark, time.Now())
	}
}
