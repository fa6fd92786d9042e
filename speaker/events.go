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
	// sessionPatience is how long a session that was never up may take before
	// that is worth an Event: routers that restart or are set up need some time.
	// For as long after a start what an earlier process left counts as told.
	sessionPatience = 30 * time.Second
	// forwardPatience is how long a change may fail to reach the kernel: most
	// failures are over with the next attempt.
	forwardPatience = 5 * time.Second
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

// A scene is what Events tell of, at one instant.
type scene struct {
	at       time.Time
	desired  *plan.Desired
	sessions []bgp.SessionStatus
	// obstacles are in the way of traffic on this node.
	obstacles []proxy.Obstacle
	// announced is what routers are told, sorted, and answers what became of addresses
	// over L2.
	announced []netip.Addr
	answers   []l2.Status
	// programmed: the kernel has what is desired; else err says why not, and
	// behind since when something waits.
	programmed bool
	err        error
	behind     time.Time
}

// scene is what there is to see now; ok is false before the first pass.
func (s *speaker) scene() (now scene, ok bool) {
	p := s.now()
	if p.desired == nil {
		return scene{}, false
	}
	return scene{
		at: time.Now(), desired: p.desired, sessions: s.bgp.Status().Sessions, obstacles: s.proxy.Obstacles(), announced: p.have, answers: p.answers,
		programmed: p.programmed, err: p.err, behind: p.behind,
	}, true
}

// A told value is what people know, by Events: the next ones tell what differs
// from it. It is immutable.
type told struct {
	sessions  map[string]toldSession
	bfd       map[string]toldSession
	obstacles []proxy.Obstacle
	announced []netip.Addr
	answered  map[netip.Addr]string // over L2, and on which interfaces
	conflicts map[netip.Addr]int    // how many there have been
	desired   *plan.Desired         // that announced was of; nil at first
	failing   bool                  // the kernel does not take what is desired
	refused   map[claimed]bool      // what is not forwarded
	dead      []string              // nodes that are not heard of, sorted
	// duplicates are BGPPeers without a session, and by whose fault.
	duplicates map[string]string
	leftOut    []string // those of them whose endpoints get no new connections

	// What was true before this process began is no news: adopted addresses may
	// have been announced, and sessions that come up before presumed were up.
	adopted  []netip.Addr
	presumed time.Time
}

// A claimed address is one as a Service has it.
type claimed struct {
	addr    netip.Addr
	service cluster.Name
}

// A toldSession is a session, or the BFD of one.
type toldSession struct {
	up    bool
	since time.Time
}

// inherit is what people know when a process begins after another one, which left
// addresses in the kernel.
func inherit(adopted []netip.Addr, began time.Time) told {
	sorted := slices.Clone(adopted)
	slices.SortFunc(sorted, netip.Addr.Compare)
	return told{adopted: sorted, presumed: began.Add(sessionPatience)}
}

// news compares what people know with what is so, and returns what to tell them
// and what they know then. Limit is how many addresses may have an Event each;
// if there are more, one Event says how many.
func news(was told, is scene, limit int) (told, []event) {
	now := told{desired: is.desired, presumed: was.presumed}
	var all []event
	all = append(all, now.tellSessions(was, is)...)
	all = append(all, now.tellBFD(was, is)...)
	all = append(all, now.tellDuplicates(was, is)...)
	all = append(all, now.tellForwarding(was, is)...)
	all = append(all, now.tellRefused(was, is, limit)...)
	all = append(all, now.tellObstacles(was, is)...)
	all = append(all, now.tellMembers(was, is)...)
	all = append(all, now.tellConflicts(was, is, limit)...)
	all = append(all, now.tellAnswers(was, is, limit)...)
	return now, append(all, now.tellAddresses(was, is, limit)...)
}

func (t *told) tellSessions(was told, is scene) (all []event) {
	t.sessions = make(map[string]toldSession, len(is.sessions))
	for _, s := range is.sessions {
		why := ": " + s.Trouble()
		switch is.turn(t.sessions, was.sessions, s.Name, toldSession{s.State == bgp.Established, s.Since}, t.presumed) {
		case stays:
		case comes:
			all = append(all, is.session(s, false, eventSessionEstablished, "has a session with", ""))
		case goes:
			all = append(all, is.session(s, true, eventSessionLost, "lost its session with", why))
		case returns:
			all = append(all, is.session(s, true, eventSessionLost, "lost its session with", ", and has it again: "+cmp.Or(s.LossReason, "no reason is known")))
		case fails:
			all = append(all, is.session(s, true, eventSessionDown, "gets no session with", why))
		}
	}
	return all
}

// tellBFD tells which routers BFD hears. Without it, silence takes long to be
// noticed, though the session is up.
func (t *told) tellBFD(was told, is scene) (all []event) {
	t.bfd = map[string]toldSession{}
	for _, s := range is.sessions {
		if s.BFD == nil {
			continue
		}
		why := ": " + cmp.Or(s.BFD.Error, s.BFD.Reason)
		switch is.turn(t.bfd, was.bfd, s.Name, toldSession{s.BFD.Up(), s.BFD.Since}, t.presumed) {
		case stays:
		case comes:
			all = append(all, is.session(s, false, eventBFDUp, "hears, by BFD,", ""))
		case goes:
			all = append(all, is.session(s, true, eventBFDDown, "no longer hears, by BFD,", why))
		case returns:
			all = append(all, is.session(s, true, eventBFDDown, "for a moment did not hear, by BFD,", why))
		case fails:
			all = append(all, is.session(s, true, eventBFDDown, "does not hear, by BFD,", why))
		}
	}
	return all
}

// A turn is what became of something that is up or down, for those who know what
// it was.
type turn int

const (
	stays turn = iota
	comes
	goes
	returns // it was away between two looks
	fails   // it was never up, and has had its time
)

// turn compares what people know of name with what is so, and puts down in now
// what they know then.
func (is scene) turn(now, was map[string]toldSession, name string, s toldSession, presumed time.Time) turn {
	knew, known := was[name]
	if !known && !s.up && is.at.Sub(s.since) < sessionPatience {
		return stays
	}
	now[name] = s
	switch {
	case known && knew.up && s.up && !s.since.Equal(knew.since):
		return returns
	case known && knew.up == s.up, !known && s.up && is.at.Before(presumed):
		return stays
	case s.up:
		return comes
	case known:
		return goes
	default:
		return fails
	}
}

// session is an event on the BGPPeer: whoever has written one looks there for
// what became of it.
func (is scene) session(s bgp.SessionStatus, warning bool, reason eventReason, verb, more string) event {
	ref := peerReference(s.Name, "")
	for _, p := range is.desired.Snapshot.Peers {
		if p.Name == s.Name {
			ref.UID = p.UID
		}
	}
	return is.event(ref, warning, reason, "Connect", fmt.Sprintf("%s router %s (%s, AS%d)%s", verb, s.Name, s.Router(), s.PeerASN, more))
}

// tellDuplicates tells which BGPPeers have no session here since older ones name the same
// routers. When one has its session after all, that is what is told.
func (t *told) tellDuplicates(was told, is scene) (all []event) {
	t.duplicates = map[string]string{}
	for _, d := range is.desired.View.Duplicates {
		t.duplicates[d.Peer.Name] = d.Of.Name
		if was.duplicates[d.Peer.Name] == d.Of.Name {
			continue
		}
		ref := peerReference(d.Peer.Name, d.Peer.UID)
		all = append(all, is.event(ref, true, eventDuplicatePeer, "Connect", fmt.Sprintf("has no session by BGPPeer %s: %s", d.Peer.Name, d.Why())))
	}
	return all
}

func peerReference(name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "BGPPeer", Name: name, UID: uid}
}

func (t *told) tellForwarding(was told, is scene) []event {
	failing := !is.programmed && is.err != nil
	t.failing = failing && (was.failing || is.at.Sub(is.behind) >= forwardPatience)
	switch {
	case t.failing && !was.failing:
		return []event{is.event(is.node(), true, eventForwardingFailed, "Forward",
			"cannot give the kernel what is desired, and announces nothing new: "+is.err.Error())}
	case was.failing && !failing:
		return []event{is.event(is.node(), false, eventForwardingRestored, "Forward", "has given the kernel what is desired")}
	}
	return nil
}

// tellRefused tells which addresses are not forwarded, as one that has more endpoints than an
// address can have. That it is forwarded again is told when it is announced.
func (t *told) tellRefused(was told, is scene, limit int) (all []event) {
	t.refused = map[claimed]bool{}
	for _, a := range is.desired.Addresses {
		for _, r := range a.Reasons {
			if r.Code != cluster.ProxyRefused || r.Protocol != "proxy" {
				continue
			}
			t.refused[claimed{a.Addr, r.Service}] = true
			if was.refused[claimed{a.Addr, r.Service}] {
				continue // numbers in it may change with every endpoint
			}
			all = append(all, is.event(is.service(r.Service), true, eventProxyRefused, "Forward", fmt.Sprintf("does not forward %s: %s", a.Addr, strings.TrimPrefix(r.Message, "not forwarded: "))))
		}
	}
	if len(all) <= limit {
		return all
	}
	return []event{is.event(is.node(), true, eventProxyRefused, "Forward", fmt.Sprintf(
		"does not forward %d addresses; `fanfare status` there says which, and why", len(t.refused)))}
}

// tellObstacles tells what came in the way of traffic on this node, and went.
func (t *told) tellObstacles(was told, is scene) (all []event) {
	t.obstacles = is.obstacles
	for _, o := range is.obstacles {
		if !slices.ContainsFunc(was.obstacles, o.Same) {
			all = append(all, is.event(is.node(), true, eventTrafficObstructed, "Forward", "has something in the way of traffic: "+o.Message))
		}
	}
	for _, o := range was.obstacles {
		if !slices.ContainsFunc(is.obstacles, o.Same) {
			all = append(all, is.event(is.node(), false, eventTrafficUnobstructed, "Forward", fmt.Sprintf("has no longer in the way of traffic: %s (%s)", o.About, o.Code)))
		}
	}
	return all
}

// tellMembers tells which nodes are not heard of any more, what becomes of what is there,
// and which are heard again. One node tells it for all.
func (t *told) tellMembers(was told, is scene) (all []event) {
	v := is.desired.View
	if v.Members == nil {
		t.dead, t.leftOut = was.dead, was.leftOut
		return nil
	}
	since := map[string]time.Time{}
	for _, m := range v.Members.Dead(v.Node) {
		t.dead = append(t.dead, m.Node)
		since[m.Node] = m.Since
		if v.IsSilent(m.Node) {
			t.leftOut = append(t.leftOut, m.Node)
		}
	}
	if !v.Members.Reporter(v.Node) {
		return nil
	}
	for _, name := range t.dead {
		out := v.IsSilent(name)
		switch {
		case !slices.Contains(was.dead, name):
			what := "what is there is left out"
			if !out {
				what = "what is there is used for now, since half of the nodes or more are not heard of"
			}
			all = append(all, is.event(is.other(name), true, eventNodeSilent, "Listen", fmt.Sprintf(
				"has not heard of node %s since %s; %s", name, since[name].UTC().Format(time.RFC3339), what)))
		case out && !slices.Contains(was.leftOut, name):
			all = append(all, is.event(is.other(name), true, eventEndpointsLeftOut, "Listen", fmt.Sprintf(
				"leaves out what is on node %s, which is not heard of: %s", name, v.WhyLeftOut(name))))
		case !out && slices.Contains(was.leftOut, name):
			all = append(all, is.event(is.other(name), true, eventEndpointsUsed, "Listen", fmt.Sprintf(
				"uses what is on node %s again, though it is not heard of: half of the nodes or more are not, so this one may be cut off", name)))
		}
	}
	for _, name := range was.dead {
		if !slices.Contains(t.dead, name) {
			all = append(all, is.event(is.other(name), false, eventNodeHeard, "Listen", fmt.Sprintf("no longer misses node %s", name)))
		}
	}
	return all
}

// service refers to a Service, and is empty when there is none.
func (is scene) service(name cluster.Name) corev1.ObjectReference {
	all := is.desired.Snapshot.Services
	i, ok := slices.BinarySearchFunc(all, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if !ok {
		return corev1.ObjectReference{}
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: all[i].UID}
}

func (is scene) node() corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: is.desired.View.Node}
	if n := is.desired.View.Self; n != nil {
		ref.UID = n.UID
	}
	return ref
}

// other refers to a node that may be another one.
func (is scene) other(name string) corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	if n := is.desired.Snapshot.Node(name); n != nil {
		ref.UID = n.UID
	}
	return ref
}

func (is scene) event(ref corev1.ObjectReference, warning bool, reason eventReason, action, what string) event {
	note := fmt.Sprintf("node %s %s", is.desired.View.Node, what)
	return event{ref, warning, reason, action, strings.ToValidUTF8(note[:min(len(note), maxNote)], "")}
}
