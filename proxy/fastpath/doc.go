// Package fastpath translates the packets of external clients to virtual addresses (VIPs)
// and back by BPF programs on tcx, before the host's netfilter: conntrack does not track
// the connections and no rule sees the packets.
//
// A [State] lists everything that the fast path of this node must do. It takes new TCP and
// UDP flows of clients on the interfaces State.Outward, to frontends with [Frontend].Take
// whose backends are all on this node. The caller decides which frontends can be taken;
// [Status].NotOffloaded lists other obstacles. Packets that the program does not take continue up
// the stack unchanged, to the rules of package proxy, which are complete without it.
//
// The rules must know every backend that this package sends to. So [Datapath.Shrink] comes
// before a change of the rules and stops taking new flows of what changes, and [Datapath.Grow]
// comes after it. Flows without a backend, VIP or permission end soon after Grow.
// [Datapath.Forget] deletes closed connections at once.
//
// Maps and links are pinned in [DefaultDir]. They outlive the process: the programs take
// new flows for another minute, and the next process adopts them. [Cleanup] removes them.
//
// An address may have as many flows as the table has room for others, and no flow is evicted.
// What needs the stack is left to the rules: flows whose fragments overtake each other, and
// all new flows where netfilter's marks or IPsec decide about routes.
//
// Packets that are taken bypass rp_filter, and network policies and firewalls made of
// netfilter rules.
//
// docs/concepts/fast-path-program.md explains the two programs, the maps, how flows end,
// and the limits.
//
// The files, in reading order:
//
//   - state.go is the contract; datapath.go has Shrink, Grow and Status; address.go converts to the
//     keys of flow.bpf.c, and generate.go compiles it.
//   - pin.go loads the programs and keeps maps and links; capabilities.go explains a refusal.
//   - attach.go and peer.go attach the programs to interfaces.
//   - maps.go writes frontends and clients, with slots.go (weights) and conntrack.go (UDP flows of the rules);
//     route.go finds the interfaces to backends, policy.go what routes do not show.
//   - expiry.go ends flows, fragments.go moves some to the rules, limit.go bounds an address's, and
//     watch.go listens to changes of links.
package fastpath
