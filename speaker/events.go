package speaker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

const (
	// sessionGrace is how long a session that was never up may take before
	// that is worth an Event: routers that restart or are set up need some time.
	// For as long after a start what an earlier process left counts as told.
	sessionGrace = 30 * time.Second
	// forwardGrace is how long a change may fail to reach the kernel: most
	// failures are over with the next attempt.
	forwardGrace = 5 * time.Second
	// maxNote is the length of a note that the API server takes.
	maxNote = 1024
)

// An event is something that happened, before it is an Event of Kubernetes.
type event struct {
	regarding corev1.ObjectReference
	warning   bool
	reason    eventReason
	action    string
	note      string // a sentence, with the node in it: an object has Events of many
}

// A observation is what Events tell of, at one instant.
type observation struct {
	at       time.Time
	desired  *plan.Desired
	sessions []bgp.SessionStatus
	// obstacles are in the way of traffic on this node.
	obstacles []proxy.Obstacle
	// announced is what routers are told, sorted, and answers what became of addresses
	// over L2.
	announced  []netip.Addr
	l2Statuses []l2.Status
	// programmed: the kernel has what is desired; else err says why not, and
	// behind since when something waits.
	programmed   bool
	err          error
	pendingSince time.Time
}

// observe is what there is to see now; ok is false before the first pass.
func (s *speaker) observe() (now observation, ok bool) {
	p := s.current()
	if p.desired == nil {
		return observation{}, false
	}
	return observation{
		at: time.Now(), desired: p.desired, sessions: s.bgp.Status().Sessions, obstacles: s.proxy.Obstacles(), announced: p.bgpAddrs, l2Statuses: p.l2Statuses,
		programmed: p.programmed, err: p.err, pendingSince: p.pendingSince,
	}, true
}

// A reported value is what people know, by Events: the next ones tell what differs
// from it. It is immutable.
type reported struct {
	sessions  map[string]reportedSession
	bfd       map[string]reportedSession
	obstacles []proxy.Obstacle
	announced []netip.Addr
	answered  map[netip.Addr]string   // over L2, and on which interfaces
	conflicts map[netip.Addr]int      // how many there have been
	desired   *plan.Desired           // that announced was of; nil at first
	failing   bool                    // the kernel does not take what is desired
	refused   map[serviceAddress]bool // what is not forwarded
	dead      []string                // nodes that are not heard of, sorted
	// duplicates are BGPPeers without a session, and by whose fault.
	duplicates map[string]string
	leftOut    []string // those of them whose endpoints get no new connections

	// What was true before this process began is no news: adopted addresses may
	// have been announced, and sessions that come up before presumed were up.
	adopted       []netip.Addr
	presumedUntil time.Time
}

// A serviceAddress address is one as a Service has it.
type serviceAddress struct {
	addr    netip.Addr
	service cluster.Name
}

// A reportedSession is a session, or the BFD of one.
type reportedSession struct {
	up    bool
	since time.Time
}

// reportedByPredecessor is what people know when a process begins after another one, which left
// addresses in the kernel.
func reportedByPredecessor(adopted []netip.Addr, began time.Time) reported {
	sorted := slices.Clone(adopted)
	slices.SortFunc(sorted, netip.Addr.Compare)
	return reported{adopted: sorted, presumedUntil: began.Add(sessionGrace)}
}

// newEvents compares what people know with what is so, and returns what to tell them
// and what they know then. Limit is how many addresses may have an Event each;
// if there are more, one Event says how many.
func newEvents(was reported, is observation, limit int) (reported, []event) {
	now := reported{desired: is.desired, presumedUntil: was.presumedUntil}
	var all []event
	all = append(all, now.sessionEvents(was, is)...)
	all = append(all, now.bfdEvents(was, is)...)
	all = append(all, now.duplicateEvents(was, is)...)
	all = append(all, now.forwardingEvents(was, is)...)
	all = append(all, now.refusalEvents(was, is, limit)...)
	all = append(all, now.obstacleEvents(was, is)...)
	all = append(all, now.memberEvents(was, is)...)
	all = append(all, now.conflictEvents(was, is, limit)...)
	all = append(all, now.l2Events(was, is, limit)...)
	return now, append(all, now.addressEvents(was, is, limit)...)
}

func (r *reported) sessionEvents(was reported, now observation) (all []event) {
	r.sessions = make(map[string]reportedSession, len(now.sessions))
	for _, s := range now.sessions {
		why := ": " + s.Trouble()
		switch now.transition(r.sessions, was.sessions, s.Name, reportedSession{s.State == bgp.Established, s.Since}, r.presumedUntil) {
		case unchanged:
		case cameUp:
			all = append(all, now.sessionEvent(s, false, eventSessionEstablished, "has a session with", ""))
		case wentDown:
			all = append(all, now.sessionEvent(s, true, eventSessionLost, "lost its session with", why))
		case flapped:
			all = append(all, now.sessionEvent(s, true, eventSessionLost, "lost its session with", ", and has it again: "+cmp.Or(s.LossReason, "no reason is known")))
		case neverUp:
			all = append(all, now.sessionEvent(s, true, eventSessionDown, "gets no session with", why))
		}
	}
	return all
}

// bfdEvents tells which routers BFD hears. Without it, silence takes long to be
// noticed, though the session is up.
func (r *reported) bfdEvents(was reported, now observation) (all []event) {
	r.bfd = map[string]reportedSession{}
	for _, s := range now.sessions {
		if s.BFD == nil {
			continue
		}
		why := ": " + cmp.Or(s.BFD.Error, s.BFD.Reason)
		switch now.transition(r.bfd, was.bfd, s.Name, reportedSession{s.BFD.Up(), s.BFD.Since}, r.presumedUntil) {
		case unchanged:
		case cameUp:
			all = append(all, now.sessionEvent(s, false, eventBFDUp, "hears, by BFD,", ""))
		case wentDown:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "no longer hears, by BFD,", why))
		case flapped:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "for a moment did not hear, by BFD,", why))
		case neverUp:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "does not hear, by BFD,", why))
		}
	}
	return all
}

// A transition is what became of something that is up or down, for those who know what
// it was.
type transition int

const (
	unchanged transition = iota
	cameUp
	wentDown
	flapped // it was away between two looks
	neverUp // it was never up, and has had its time
)

// transition compares what people know of name with what is so, and puts down in now
// what they know then.
func (is observation) transition(now, was map[string]reportedSession, name string, s reportedSession, presumed time.Time) transition {
	knew, known := was[name]
	if !known && !s.up && is.at.Sub(s.since) < sessionGrace {
		return unchanged
	}
	now[name] = s
	switch {
	case known && knew.up && s.up && !s.since.Equal(knew.since):
		return flapped
	case known && knew.up == s.up, !known && s.up && is.at.Before(presumed):
		return unchanged
	case s.up:
		return cameUp
	case known:
		return wentDown
	default:
		return neverUp
	}
}

// sessionEvent is an event on the BGPPeer: whoever has written one looks there for
// what became of it.
func (now observation) sessionEvent(s bgp.SessionStatus, warning bool, reason eventReason, verb, more string) event {
	ref := peerReference(s.Name, "")
	for _, p := range now.desired.Snapshot.Peers {
		if p.Name == s.Name {
			ref.UID = p.UID
		}
	}
	return now.event(ref, warning, reason, "Connect", fmt.Sprintf("%s router %s (%s, AS%d)%s", verb, s.Name, s.Router(), s.PeerASN, more))
}

// duplicateEvents tells which BGPPeers have no session here since older ones name the same
// routers. When one has its session after all, that is what is told.
func (r *reported) duplicateEvents(was reported, now observation) (all []event) {
	r.duplicates = map[string]string{}
	for _, d := range now.desired.View.Duplicates {
		r.duplicates[d.Peer.Name] = d.Of.Name
		if was.duplicates[d.Peer.Name] == d.Of.Name {
			continue
		}
		ref := peerReference(d.Peer.Name, d.Peer.UID)
		all = append(all, now.event(ref, true, eventDuplicatePeer, "Connect", fmt.Sprintf("has no session by BGPPeer %s: %s", d.Peer.Name, d.Why())))
	}
	return all
}

func peerReference(name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "BGPPeer", Name: name, UID: uid}
}

func (r *reported) forwardingEvents(was reported, now observation) []event {
	failing := !now.programmed && now.err != nil
	r.failing = failing && (was.failing || now.at.Sub(now.pendingSince) >= forwardGrace)
	switch {
	case r.failing && !was.failing:
		return []event{now.event(now.thisNodeRef(), true, eventForwardingFailed, "Forward",
			"cannot give the kernel what is desired, and announces nothing new: "+now.err.Error())}
	case was.failing && !failing:
		return []event{now.event(now.thisNodeRef(), false, eventForwardingRestored, "Forward", "has given the kernel what is desired")}
	}
	return nil
}

// refusalEvents tells which addresses are not forwarded, as one that has more endpoints than an
// address can have. That it is forwarded again is told when it is announced.
func (t *reported) refusalEvents(was reported, now observation, limit int) (all []event) {
	t.refused = map[serviceAddress]bool{}
	for _, a := range now.desired.Addresses {
		for _, r := range a.Reasons {
			if r.Code != cluster.ProxyRefused || r.Protocol != "proxy" {
				continue
			}
			t.refused[serviceAddress{a.Addr, r.Service}] = true
			if was.refused[serviceAddress{a.Addr, r.Service}] {
				continue // numbers in it may change with every endpoint
			}
			all = append(all, now.event(now.serviceRef(r.Service), true, eventProxyRefused, "Forward", fmt.Sprintf("does not forward %s: %s", a.Addr, strings.TrimPrefix(r.Message, "not forwarded: "))))
		}
	}
	if len(all) <= limit {
		return all
	}
	return []event{now.event(now.thisNodeRef(), true, eventProxyRefused, "Forward", fmt.Sprintf(
		"does not forward %d addresses; `fanfare status` there says which, and why", len(t.refused)))}
}

// obstacleEvents tells what came in the way of traffic on this node, and went.
func (r *reported) obstacleEvents(was reported, now observation) (all []event) {
	r.obstacles = now.obstacles
	for _, o := range now.obstacles {
		if !slices.ContainsFunc(was.obstacles, o.Same) {
			all = append(all, now.event(now.thisNodeRef(), true, eventTrafficObstructed, "Forward", "has something in the way of traffic: "+o.Message))
		}
	}
	for _, o := range was.obstacles {
		if !slices.ContainsFunc(now.obstacles, o.Same) {
			all = append(all, now.event(now.thisNodeRef(), false, eventTrafficUnobstructed, "Forward", fmt.Sprintf("has no longer in the way of traffic: %s (%s)", o.About, o.Code)))
		}
	}
	return all
}

// memberEvents tells which nodes are not heard of any more, what becomes of what is there,
// and which are heard again. One node tells it for all.
func (r *reported) memberEvents(was reported, now observation) (all []event) {
	v := now.desired.View
	if v.Members == nil {
		r.dead, r.leftOut = was.dead, was.leftOut
		return nil
	}
	since := map[string]time.Time{}
	for _, m := range v.Members.Dead(v.Node) {
		r.dead = append(r.dead, m.Node)
		since[m.Node] = m.Since
		if v.IsSilent(m.Node) {
			r.leftOut = append(r.leftOut, m.Node)
		}
	}
	if !v.Members.Reporter(v.Node) {
		return nil
	}
	for _, name := range r.dead {
		out := v.IsSilent(name)
		switch {
		case !slices.Contains(was.dead, name):
			what := "what is there is left out"
			if !out {
				what = "what is there is used for now, since half of the nodes or more are not heard of"
			}
			all = append(all, now.event(now.nodeRef(name), true, eventNodeSilent, "Listen", fmt.Sprintf(
				"has not heard of node %s since %s; %s", name, since[name].UTC().Format(time.RFC3339), what)))
		case out && !slices.Contains(was.leftOut, name):
			all = append(all, now.event(now.nodeRef(name), true, eventEndpointsLeftOut, "Listen", fmt.Sprintf(
				"leaves out what is on node %s, which is not heard of: %s", name, v.WhyLeftOut(name))))
		case !out && slices.Contains(was.leftOut, name):
			all = append(all, now.event(now.nodeRef(name), true, eventEndpointsUsed, "Listen", fmt.Sprintf(
				"uses what is on node %s again, though it is not heard of: half of the nodes or more are not, so this one may be cut off", name)))
		}
	}
	for _, name := range was.dead {
		if !slices.Contains(r.dead, name) {
			all = append(all, now.event(now.nodeRef(name), false, eventNodeHeard, "Listen", fmt.Sprintf("no longer misses node %s", name)))
		}
	}
	return all
}

// serviceRef refers to a Service, and is empty when there is none.
func (now observation) serviceRef(name cluster.Name) corev1.ObjectReference {
	all := now.desired.Snapshot.Services
	i, ok := slices.BinarySearchFunc(all, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if !ok {
		return corev1.ObjectReference{}
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: all[i].UID}
}

func (now observation) thisNodeRef() corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: now.desired.View.Node}
	if n := now.desired.View.Self; n != nil {
		ref.UID = n.UID
	}
	return ref
}

// nodeRef refers to a node that may be another one.
func (now observation) nodeRef(name string) corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	if n := now.desired.Snapshot.Node(name); n != nil {
		ref.UID = n.UID
	}
	return ref
}

func (now observation) event(ref corev1.ObjectReference, warning bool, reason eventReason, action, what string) event {
	note := fmt.Sprintf("node %s %s", now.desired.View.Node, what)
	return event{ref, warning, reason, action, strings.ToValidUTF8(note[:min(len(note), maxNote)], "")}
}
