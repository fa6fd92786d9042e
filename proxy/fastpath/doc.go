// Package fastpath translates the packets of external clients to virtual addresses (VIPs)
// and back by a program on tcx, before they meet the host's netfilter: no connection is
// tracked, no rule is asked. An established flow costs a look at its headers, one search
// of a table, a rewrite, and a search for a route.
//
// It is for what is simple, and what it does not take goes up the stack untouched, to
// the rules of package proxy, which are complete without it. It takes TCP and UDP of
// clients that come in by [State].Outward, to frontends with [Frontend].Take, whose
// backends are all on this node behind interfaces with Ethernet's header. Whether a
// frontend can be taken, the caller decides; what this package finds in the way besides is in
// [Status].Left.
//
// What others do with netfilter to forwarded packets, as network policies and host
// firewalls of iptables do, these packets do not meet. Nor do they meet rp_filter. Who needs those must not use
// this package.
//
// # Two programs
//
// "bpftool net" shows them: outward, at the ingress of the interfaces that clients come
// in by, and inward, at that of the interfaces that lead to backends: a pod's veth, or
// the bridge that it is a port of. They come behind other programs of tcx, and what they
// leave alone goes on to whoever is next. The source is flow.bpf.c, the object is made by
// "go generate" with clang 14 and is the same wherever it is made.
//
// A packet is taken if it is for this host by its MAC, has no VLAN tag and no options or
// extension headers, and its flow is known: then its address and port are replaced, its
// TTL is one less, and it goes where the route leads: to the other end of a pod's
// interface at once, where that may be (below), and by neighbour discovery as ever elsewhere. It
// is a new flow's if it is UDP, or TCP with SYN alone, for a frontend that is taken,
// from a source that is not in clients. Then it needs a route to a backend by an interface
// that has the program inward, and a route back to its source by one that has the
// program outward: so a source that is the node's own, or a pod's, is left to the stack. Who
// had a way back is not asked about again in the same second.
//
// # The other end
//
// A packet that is sent by a veth waits for its turn to be received at the other end. It
// need not: the kernel lets it change ends on the spot (bpf_redirect_peer), and that
// saves more than translating costs. But it goes past everything at the egress of the node's
// end. So the map interfaces says for which ones it is done: for veth pairs that are up, that lead
// to backends, and to no client, whose other end is in another network namespace; with
// neither a queue at the node's end, as that by which a plugin of CNI shapes what a pod gets, nor a
// clsact, nor a program of tcx at its egress; and with no program of XDP at the pod's end, which
// shows by the MTU that the node's end may have. That is looked at when interfaces or queues
// change and every five seconds, and believed for as long as the lease below.
//
// The packet has the MACs that it would have had. Until the pod's is known, packets are sent as
// ever, and find it out. A MAC that is known is asked for again like one that
// the kernel uses itself, by this process, which tells it of the use. A capture
// at the node's end shows what the pod sends, and not what is handed to it.
//
// A packet of a known flow never meets the rules as it was: they would take it for a stray
// one. If it is too large for the route and must not be fragmented, its sender is told so,
// in the name of whom it was for. If it cannot be sent on for another reason, as that its TTL
// ends, it is translated, and the stack forwards it or says what is wrong with it.
//
// Errors of ICMP (v4: 3, 11, 12; v6: 1 to 4) that quote a packet of a known flow are
// translated, outside and inside, but for the checksum of the quoted TCP or UDP, which
// nobody looks at. So path MTU discovery works, and a pod's port unreachable reaches
// its client.
//
// Of a datagram in fragments the first one has the ports, and those behind it are found by
// its number (the map fragments). A fragment that comes before the first is left alone.
//
// A client may use one port of its own for two VIPs, and meet the same backend, which
// would take them for one connection. The second flow gets another port of the client's at the
// backend. Between flows here and flows that the rules have, nobody would see that:
// frontends that share a backend's port should be taken all or none.
//
// A segment that ends or resets a connection is believed without a look at its
// sequence number. That ends nothing at once, and what comes after it takes it back, but who
// can forge a client's address and guess its port can end a connection that is silent for
// ten seconds after it.
//
// # Maps
//
// They are pinned in [DefaultDir]/v1, which is the version of the keys and values.
// "bpftool map dump pinned /sys/fs/bpf/fanfare/v1/flows" shows this one, and so on. Addresses are
// 16 octets, those of IPv4 as ::ffff:a.b.c.d; ports are plain numbers.
//
//	flows       what to do to packets, and what came; two entries for a flow
//	frontends   VIP, port, protocol : a set of slots and their number; only what takes new flows
//	slots       set, slot : a backend, another one, keep
//	clients     sources that are left to the rules, by prefix; IPv4's are 96 bits longer
//	interfaces  index : the sum of 1 clients come in here, 2 backends are behind it, and 4 what
//	            is for those is handed to the other end
//	fragments   source, destination, number, protocol : ports; of the last few thousand datagrams
//	counters    0 flows begun, 1 flows without room, 2 flows that got another client's port,
//	            3 packets left to the stack translated, 4 errors of ICMP translated,
//	            5 packets whose senders were told that they are too large; for each CPU
//	lease       until when new flows are taken, in seconds since boot
//
// The map sources, of who had a way back, is not pinned: nobody needs it later.
//
// The key of flows is what a packet has before it is translated: source, destination,
// their ports, protocol, and direction, 1 from a client and 2 from a backend. The value is
// what is put in its place: for direction 1 the destination becomes address and port, which
// is the backend; for 2 the source does, which is the VIP. client_port is the client's port as
// it becomes, mostly the same. seen is when the last packet came, in seconds since boot
// (the first field of /proc/uptime, but for time in suspension). state has bits: 1 the
// direction was used, by TCP from clients with more than a SYN; 2 it has sent FIN;
// 4 its last segment was RST.
//
// A new flow takes one of the slots of its frontend's set at random, and there the backend
// if another random number of 32 bits is not above keep, else the other one. That is the
// alias method: weights are exact, and cost nothing. A frontend that changes gets a set
// with another number, and the old one's slots go a few seconds later.
//
// # How flows end
//
// The program never deletes a flow but for one: a SYN on a connection that has ended, by FIN
// from both sides or RST, begins another. All else this process does, which looks at all flows
// every five seconds or less often if there are many. Flows end when they are silent for
// as long as conntrack would wait, or nearly so:
//
//	5 days   a connection
//	120 s    one of its sides has sent FIN; UDP that was answered
//	60 s     a SYN that was not answered, since the first, or whose answer was not
//	30 s     both sides have sent FIN; UDP that was not answered
//	10 s     RST was the last that one side sent
//
// And they end, at the next look, which a change makes soon, when [State] says so: their
// backend is neither in Backends nor draining, their source may not use the frontend any
// more, or their VIP is none any more. A SYN without an answer leaves a backend
// that drains, after a second or two.
// What comes next of an ended connection meets the rules, which reset it.
//
// A connection that both sides have ended or one has reset can be ended at once by [Path.Forget]:
// for an address that comes back from another node, where its client's port may be in use
// again.
//
// When the table is full a new flow is left to the rules and counted. No flow is evicted
// for another. A flow of UDP that found no room is scheduled anew when there is some.
// Each flow takes two entries of about 130 bytes when it is there, and 32 bytes whether or not.
//
// Before a frontend of UDP is taken, its flows that conntrack translates are copied, soon
// after Grow, so that they stay where they are. Connections of TCP stay with the rules until they
// end.
//
// # Order
//
// The rules must know every backend that this package sends to. So [Path.Shrink] comes before a
// change of the rules, and takes away what they will have no more, and [Path.Grow] after
// it, with what they now have.
//
// # Processes come and go
//
// Maps and links (outward-2, inward-7: by the interface's index) are pinned: who ends,
// or is killed, leaves all in place, and whoever comes next takes over: the links get
// its programs without a packet between. Pins of another version are removed; their
// connections end. New flows, however, are taken for a minute after the last process has said
// so (the map lease): a node whose speaker is gone for good should not send clients to
// pods of the past. Known flows go on. [Cleanup] removes everything.
//
// Interfaces, their queues and routes are watched: a pod's interface that comes gets its program before
// new flows are sent there. What others detach or unpin is put back and counted, in [Status].
//
// # Limits
//
//   - The kernel must be Linux 6.6 or newer, with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON
//     (or CAP_SYS_ADMIN), and a file system of BPF mounted.
//   - Where net.bridge.bridge-nf-call-iptables is 1, what pods behind a bridge send meets
//     prerouting before it gets here. That costs time, and conntrack finds replies invalid
//     there: a chain at prerouting that drops those drops them.
//   - A pod must answer by the interface that the node reaches it by.
//   - Nothing tells of chains that netfilter has at the egress of a device (family netdev):
//     what is handed to the other end of that device does not meet them.
//   - BIG TCP of IPv6, which is off unless somebody sets gro_ipv6_max_size, is not
//     understood: its packets go to the rules.
package fastpath
