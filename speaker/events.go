package speaker

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/event"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

const (
	// sessionGrace is how long a session may take to come up before it causes an Event:
	// routers that restart, or are being set up, need some time. Within sessionGrace after
	// a start, sessions that come up count as up before.
	sessionGrace = 30 * time.Second
	// forwardGrace is how long the kernel may reject a change before that causes an Event:
	// most retries succeed.
	forwardGrace = 5 * time.Second
	// maxNote is the longest note that the API server accepts.
	maxNote = 1024
)

// An observation is the state from which Events are derived, at one instant.
type observation struct {
	passResult
	at        time.Time
	sessions  []bgp.SessionStatus
	obstacles []obstacle.Obstacle
}

// observe returns the present observation; ok is false before the first pass.
func (s *speaker) observe() (now observation, ok bool) {
	p := s.current()
	if p.desired == nil {
		return observation{}, false
	}
	sessions, obstacles := s.bgp.Status().Sessions, s.proxy.Obstacles()
	return observation{passResult: *p, at: time.Now(), sessions: sessions, obstacles: obstacles}, true
}

// reported is what Events have reported so far. The next ones report the differences. It is
// immutable.
type reported struct {
	sessions  map[string]reportedSession
	bfd       map[string]reportedSession
	obstacles []obstacle.Obstacle
	announced sortedset.Set[netip.Addr]
	answered  map[netip.Addr]string   // the interfaces, by address, over L2
	conflicts map[netip.Addr]int      // conflict counts
	desired   *plan.Desired           // when announced was reported; nil at first
	failing   bool                    // the kernel does not accept what is desired
	refused   map[serviceAddress]bool // addresses that the proxy refuses
	dead      []string                // nodes, sorted
	// duplicates are BGPPeers without a session, each with the BGPPeer that has it.
	duplicates map[string]string
	leftOut    []string // dead nodes whose endpoints get no new connections

	// What was true before this process started is not reported: adopted addresses may have
	// been announced, and sessions that come up before presumedUntil were up.
	adopted       []netip.Addr
	presumedUntil time.Time
}

// A serviceAddress is an address of one Service.
type serviceAddress struct {
	addr    netip.Addr
	service cluster.Name
}

// A reportedSession is a session or its BFD.
type reportedSession struct {
	up    bool
	since time.Time
}

// reportedBefore is what an earlier process that left addresses in the kernel has reported.
func reportedBefore(adopted []netip.Addr, began time.Time) reported {
	sorted := slices.Clone(adopted)
	slices.SortFunc(sorted, netip.Addr.Compare)
	return reported{adopted: sorted, presumedUntil: began.Add(sessionGrace)}
}

// newEvents returns the events between two states, and what they report in total. If more
// than limit addresses changed, one event has their number.
func newEvents(was reported, now observation, limit int) (reported, []event.Event) {
	next := reported{desired: now.desired, presumedUntil: was.presumedUntil}
	var all []event.Event
	all = append(all, next.sessionEvents(was, now)...)
	all = append(all, next.bfdEvents(was, now)...)
	all = append(all, next.duplicateEvents(was, now)...)
	all = append(all, next.forwardingEvents(was, now)...)
	all = append(all, next.refusalEvents(was, now, limit)...)
	all = append(all, next.obstacleEvents(was, now)...)
	all = append(all, next.memberEvents(was, now)...)
	all = append(all, next.conflictEvents(was, now, limit)...)
	all = append(all, next.l2Events(was, now, limit)...)
	return next, append(all, next.addressEvents(was, now, limit)...)
}

// sessionEvents reports BGP sessions that come up or go down, on their BGPPeers.
func (r *reported) sessionEvents(was reported, now observation) (all []event.Event) {
	r.sessions = make(map[string]reportedSession, len(now.sessions))
	for _, s := range now.sessions {
		why := ": " + s.DownReason()
		switch now.transition(r.sessions, was.sessions, s.Name, reportedSession{s.State == bgp.Established, s.Since},
			r.presumedUntil) {
		case unchanged:
		case cameUp:
			all = append(all, now.sessionEvent(s, false, eventSessionEstablished, "has a session with", ""))
		case wentDown:
			all = append(all, now.sessionEvent(s, true, eventSessionLost, "lost its session with", why))
		case flapped:
			all = append(all, now.sessionEvent(s, true, eventSessionLost, "lost its session with",
				", and established it again: "+cmp.Or(s.LossReason, "no reason is known")))
		case neverUp:
			all = append(all, now.sessionEvent(s, true, eventSessionDown, "has no session with", why))
		}
	}
	return all
}

// bfdEvents reports when BFD goes up or down. Without BFD the session stays up, but
// failures are detected late.
func (r *reported) bfdEvents(was reported, now observation) (all []event.Event) {
	r.bfd = map[string]reportedSession{}
	for _, s := range now.sessions {
		if s.BFD == nil {
			continue
		}
		why := ": " + cmp.Or(s.BFD.Error, s.BFD.Reason)
		switch now.transition(r.bfd, was.bfd, s.Name, reportedSession{s.BFD.Up(), s.BFD.Since}, r.presumedUntil) {
		case unchanged:
		case cameUp:
			all = append(all, now.sessionEvent(s, false, eventBFDUp, "has BFD with", ""))
		case wentDown:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "lost BFD with", why))
		case flapped:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "briefly lost BFD with", why))
		case neverUp:
			all = append(all, now.sessionEvent(s, true, eventBFDDown, "has no BFD with", why))
		}
	}
	return all
}

// A transition is the change of a session since the last report.
type transition int

const (
	unchanged transition = iota
	cameUp
	wentDown
	flapped // down and up again between two observations
	neverUp // not up within sessionGrace
)

// transition compares a session with its last report, and records the new one in next.
func (now observation) transition(next, was map[string]reportedSession, name string, s reportedSession,
	presumed time.Time) transition {
	knew, known := was[name]
	if !known && !s.up && now.at.Sub(s.since) < sessionGrace {
		return unchanged
	}
	next[name] = s
	switch {
	case known && knew.up && s.up && !s.since.Equal(knew.since):
		return flapped
	case known && knew.up == s.up, !known && s.up && now.at.Before(presumed):
		return unchanged
	case s.up:
		return cameUp
	case known:
		return wentDown
	default:
		return neverUp
	}
}

// sessionEvent is an event of the BGPPeer, where its author looks for the result.
func (now observation) sessionEvent(s bgp.SessionStatus, warning bool, reason eventReason, verb,
	more string) event.Event {
	ref := peerReference(s.Name, "")
	for _, p := range now.desired.Snapshot.Peers {
		if p.Name == s.Name {
			ref.UID = p.UID
		}
	}
	return now.event(ref, warning, reason, "Connect",
		fmt.Sprintf("%s router %s (%s, AS%d)%s", verb, s.Name, s.Router(), s.PeerASN, more))
}

// duplicateEvents reports BGPPeers without a session because an older one names the same
// router. The end of it is reported as a new session.
func (r *reported) duplicateEvents(was reported, now observation) (all []event.Event) {
	r.duplicates = map[string]string{}
	for _, d := range now.desired.Inputs.Duplicates() {
		r.duplicates[d.Peer.Name] = d.Of.Name
		if was.duplicates[d.Peer.Name] == d.Of.Name {
			continue
		}
		ref := peerReference(d.Peer.Name, d.Peer.UID)
		all = append(all, now.event(ref, true, eventDuplicatePeer, "Connect",
			fmt.Sprintf("has no session for BGPPeer %s: %s", d.Peer.Name, d.Why())))
	}
	return all
}

// peerReference refers to a BGPPeer. Without a UID, kubectl still shows the Event by name.
func peerReference(name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "BGPPeer", Name: name, UID: uid}
}

// forwardingEvents reports that the kernel rejects changes for forwardGrace, and the end of
// that.
func (r *reported) forwardingEvents(was reported, now observation) []event.Event {
	failing := !now.programmed && now.err != nil
	r.failing = failing && (was.failing || now.at.Sub(now.pendingSince) >= forwardGrace)
	switch {
	case r.failing && !was.failing:
		return []event.Event{now.event(now.thisNodeRef(), true, eventForwardingFailed, "Forward",
			"cannot program the kernel, and announces nothing new: "+now.err.Error())}
	case was.failing && !failing:
		return []event.Event{now.event(now.thisNodeRef(), false, eventForwardingRestored, "Forward",
			"has programmed the kernel")}
	}
	return nil
}

// refusalEvents reports addresses that the proxy refuses, for example because they have too
// many endpoints. The end of a refusal is reported as an announcement.
func (r *reported) refusalEvents(was reported, now observation, limit int) (all []event.Event) {
	r.refused = map[serviceAddress]bool{}
	maps.Copy(r.refused, was.refused)
	var before sortedset.Set[*plan.Address]
	if was.desired != nil {
		before = was.desired.Addresses
	}
	for a, is := range sortedset.Differences(before, now.desired.Addresses, compareAddresses) {
		if is {
			all = append(all, r.refusalsOf(a, was, now)...)
			continue
		}
		// The new decision comes after the old one.
		for _, name := range a.Services {
			delete(r.refused, serviceAddress{a.Addr, name})
		}
	}
	if len(all) <= limit {
		return all
	}
	return []event.Event{now.event(now.thisNodeRef(), true, eventProxyRefused, "Forward", fmt.Sprintf(
		"does not forward %d addresses: run `fanfare status` there for the list", len(r.refused)))}
}

// refusalsOf reports the refusals of an address that was decided again.
func (r *reported) refusalsOf(a *plan.Address, was reported, now observation) (all []event.Event) {
	if !a.Refused() {
		return nil
	}
	for _, reason := range now.desired.ReasonsOf(a) {
		verb := "does not forward"
		switch {
		case reason.Protocol != "proxy":
			continue
		case reason.Code == cluster.ProxyLimited:
			verb = "does not forward all of"
		case reason.Code != cluster.ProxyRefused:
			continue
		}
		r.refused[serviceAddress{a.Addr, reason.Service}] = true
		if was.refused[serviceAddress{a.Addr, reason.Service}] {
			continue // numbers in the message may change with every endpoint
		}
		what := fmt.Sprintf("%s %s: %s", verb, a.Addr, strings.TrimPrefix(reason.Message, "not forwarded: "))
		ref := serviceRef(now.desired, reason.Service)
		all = append(all, now.event(ref, true, eventProxyRefused, "Forward", what))
	}
	return all
}

// obstacleEvents reports what blocks traffic on this node, and when it is gone.
func (r *reported) obstacleEvents(was reported, now observation) (all []event.Event) {
	r.obstacles = now.obstacles
	for _, o := range now.obstacles {
		if !slices.ContainsFunc(was.obstacles, o.Same) {
			all = append(all, now.event(now.thisNodeRef(), true, eventTrafficObstructed, "Forward",
				"has an obstacle to traffic: "+o.Message))
		}
	}
	for _, o := range was.obstacles {
		if !slices.ContainsFunc(now.obstacles, o.Same) {
			all = append(all, now.event(now.thisNodeRef(), false, eventTrafficUnobstructed, "Forward",
				fmt.Sprintf("no longer has an obstacle to traffic: %s (%s)", o.About, o.Code)))
		}
	}
	return all
}

// memberEvents reports which nodes are dead, and whether their endpoints are used. One node
// reports for all.
func (r *reported) memberEvents(was reported, now observation) (all []event.Event) {
	v := now.desired.Inputs
	if v.Members == nil {
		r.dead, r.leftOut = was.dead, was.leftOut
		return nil
	}
	since := map[string]time.Time{}
	for _, m := range v.Members.Dead(v.Node) {
		r.dead = append(r.dead, m.Node)
		since[m.Node] = m.Since
		if v.IsUnresponsive(m.Node) {
			r.leftOut = append(r.leftOut, m.Node)
		}
	}
	if !v.Members.Reporter(v.Node) {
		return nil
	}
	for _, name := range r.dead {
		if reason, what := now.deadNode(was, name, since[name]); reason != "" {
			all = append(all, now.event(now.nodeRef(name), true, reason, "Listen", what))
		}
	}
	for _, name := range was.dead {
		if !slices.Contains(r.dead, name) {
			all = append(all, now.event(now.nodeRef(name), false, eventNodeHeard, "Listen",
				fmt.Sprintf("receives messages from node %s again", name)))
		}
	}
	return all
}

// deadNode returns the reason and the note for a dead node, empty if nothing has changed.
func (now observation) deadNode(was reported, name string, since time.Time) (eventReason, string) {
	v := now.desired.Inputs
	out := v.IsUnresponsive(name)
	switch {
	case !slices.Contains(was.dead, name):
		what := "its endpoints get no new connections"
		if !out {
			what = "its endpoints are used for now, because half of the nodes or more are silent"
		}
		return eventNodeSilent, fmt.Sprintf("has received no message from node %s since %s; %s", name,
			since.UTC().Format(time.RFC3339), what)
	case out && !slices.Contains(was.leftOut, name):
		return eventEndpointsLeftOut, fmt.Sprintf(
			"gives no new connections to the endpoints on node %s, which is silent: %s", name, v.WhyLeftOut(name))
	case !out && slices.Contains(was.leftOut, name):
		return eventEndpointsUsed, fmt.Sprintf(
			"uses the endpoints on node %s again although it is silent: half of the nodes or more are, so that "+
				"this node may be cut off", name)
	}
	return "", ""
}

// serviceRef refers to a Service of d, and is empty if it does not exist.
func serviceRef(d *plan.Desired, name cluster.Name) corev1.ObjectReference {
	s := d.Snapshot.Service(name)
	if s == nil {
		return corev1.ObjectReference{}
	}
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: s.UID,
	}
}

// thisNodeRef refers to the Node of this speaker.
func (now observation) thisNodeRef() corev1.ObjectReference {
	return now.nodeRef(now.desired.Inputs.Node)
}

// nodeRef refers to any Node.
func (now observation) nodeRef(name string) corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	if n := now.desired.Snapshot.Node(name); n != nil {
		ref.UID = n.UID
	}
	return ref
}

// event returns an event whose note begins with this node. A note that is too long is cut at
// a character.
func (now observation) event(ref corev1.ObjectReference, warning bool, reason eventReason, action,
	what string) event.Event {
	note := fmt.Sprintf("node %s %s", now.desired.Inputs.Node, what)
	return event.Event{
		Regarding: ref, Warning: warning, Reason: string(reason), Action: action,
		Note: strings.ToValidUTF8(note[:min(len(note), maxNote)], ""),
	}
}
