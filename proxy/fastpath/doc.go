// Package fastpath translates the packets of external clients to virtual addresses (VIPs)
// and back by a program on tcx, before they meet the host's netfilter: no connection is
// tracked, no rule is asked.
//
// A [State] is everything that the fast path of this node must do. It takes new TCP and
// UDP flows of clients that come in by State.Outward, to frontends with [Frontend].Take
// whose backends are all on this node. The caller decides which frontends can be taken.
// What else prevents it is in [Status].Left. A packet that the program does not take goes
// up the stack untouched, to the rules of package proxy, which are complete without it.
//
// The rules must know every backend that this package sends to. So [Path.Shrink] comes
// before a change of the rules and stops taking new flows of what changes, and [Path.Grow]
// comes after it. Flows whose backend, VIP or permission has gone end soon after Grow.
// [Path.Forget] deletes ended connections at once.
//
// Maps and links are pinned in [DefaultDir]: they outlive the process, take new flows for a
// minute after it, and the next process takes them over. [Cleanup] removes them.
//
// Packets that are taken bypass network policies and firewalls made of netfilter, and rp_filter.
//
// docs/concepts/fast-path-program.md explains the two programs, the maps, how flows end,
// and the limits.
package fastpath
