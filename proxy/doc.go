// Package proxy forwards the traffic of virtual addresses (VIPs) to their
// endpoints with the kernel's netfilter, as a [State] says.
//
// It writes one table, inet fanfare, or, where that cannot be, chains of iptables
// (see below), and nothing else but what hands connections on (see there). The table has static
// chains, loaded once as text (ruleset.nft), and sets and maps that hold all
// that depends on Services. [Proxy.Set] compares the new State with the one
// before, pointer by pointer, and sends what differs as elements, by netlink,
// in one transaction. So one changed endpoint is a few elements, however many VIPs
// there are, and packets meet either the old or the new state. A packet that is
// between two lookups meets both: so what an element leads to, as chains and the
// sources of a fence, is made in a transaction before, and what elements led to, as
// slots that no frontend has any more, goes in one after. The kernel looks at all verdicts of all maps whenever one is
// added, some milliseconds for thousands: so no frontend has a verdict, but a number.
//
// A first packet is lost all the same, and sent again by its client, if it is between two
// lookups from before the second of these transactions until after the third, a millisecond
// or so: if a hypervisor, or an interrupt, takes the CPU away in those hundred nanoseconds. The kernel waits for such packets
// before it frees what a transaction removed (nf_tables_trans_destroy_work), but not before a
// transaction is in force. To wait between the two, as membarrier(2) does for all CPUs, takes a grace
// period of RCU: mostly 5 to 18 ms, up to 170 ms, measured on busy cores, for every change
// of a number of backends, which takes 2 ms. That would be worse for more clients.
//
// A change of more than 1 MiB is made in several transactions: one is a single message to the
// kernel, which must fit into the socket's send buffer (SO_SNDBUFFORCE; without the right to that
// net.core.wmem_max), and for any program that listens to changes of nftables the kernel
// keeps kilobytes for each of its elements until it is done. A list of elements in it has at most
// 64 KiB, as any attribute of netlink. The parts are ordered so that what a packet asks for
// because of an element that it met is there before that; each key changes at one moment.
//
// [Limits] bound what one address may have, and a [Refused] says which are not set because of
// that, or because the kernel does not take them; Set goes on with all others.
//
// The package knows no Kubernetes. It does not announce addresses, does not
// check endpoints' health and sets no sysctl: the node must forward
// (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), as it must for its pods.
// What is in the way of traffic all the same is in [Status].Obstacles.
//
// # Reading the table
//
// This is what "nft list table inet fanfare" shows, in the order in which
// packets meet it. Names that end in 4 have a twin in 6 for IPv6.
//
//	hook        priority  chain              what it does
//	prerouting  -101 nat  nat-prerouting     chooses a backend for what arrives
//	output      -101 nat  nat-output         chooses a backend for processes of the host
//	prerouting  -99       filter-prerouting  refuses what is still for an address of ours
//	output      -1        filter-output      refuses what processes of the host send to a VIP's other ports;
//	                                         lets pass what is handed on
//	input       98 nat    nat-learn-input    remembers which backend on the node itself a client has
//	postrouting 99 nat    nat-postrouting    remembers the others, and chooses the source that the backend sees
//
// In the listing nft writes "dstnat - 1" for -101 and "srcnat - 1" for 99. The kernel
// asks the chains of type nat about the first packet of a flow alone. All others
// of the flow meet the two filters, which let pass what was translated before they
// search anything.
//
//	set vips4       the VIPs
//	set owned4      prefixes that belong to us: State.Owned
//	set clients4    addresses of clients on this node: LocalClients.CIDRs
//	set clientifs   interfaces of clients on this node, as "cali*" or "cni0"
//	map xsvc4       VIP . protocol . port : number of a chain, for what arrives
//	map isvc4       the same for internal clients
//	map xsvcto      what the numbers in xsvc4 stand for: goto a chain. Likewise isvcto,
//	                xfencedto, ifencedto, xschedto, ischedto
//	map xfenced4    what xsvc4 would say of frontends that not all sources may use
//	map ifenced4    the same for isvc4
//	set allowed4    VIP . protocol . port . sources that may use such a frontend
//	map xeps4       VIP . protocol . port . slot : backend . port, for external clients
//	map ieps4       the same for internal clients
//	map xslots4     VIP . protocol . port . slot of its table : backend . port, where the scheduler has one
//	map islots4     the same for internal clients, where it is another
//	map xsched4     what xsvc4 would say of frontends with affinity
//	map isched4     the same for isvc4
//	map xturn4      VIP . protocol . port : goto the chain of a frontend whose backends take turns
//	map iturn4      the same for internal clients
//	map aff4        client . VIP . protocol . port : backend . port that the client had
//	map learn4      VIP . protocol . port : goto how long to remember
//	set sticky4     VIPs that have frontends with affinity
//	set late4       those, and VIPs that have elements in xmasq4 or imasq4
//	set xback4      VIP . protocol . port . backend . port: where external clients may come back to
//	set iback4      the same for internal clients
//	set fading4     those of either that are about to go: who is sent there is not remembered
//	set xmasq4      VIP . protocol . port . backend . port: masquerade external clients
//	set imasq4      the same for internal clients
//	set drain4      VIP . protocol . port . backend . port: backends that get no new
//	                flows and keep those that they have. No rule asks for them: they
//	                are there for a process that finds the table
//	set hair4       VIP . pod . pod: pods that may meet themselves behind the VIP
//	set never4      networks of backends that see the client: SNAT.Never
//	map from4       the address to use as the new source: SNAT.Sources
//	map sources     family : goto how a source is replaced, where not by the default
//	map marks       family : goto the chain that marks what gets a new source
//
// # External and internal clients
//
// A port of a VIP has two frontends. Processes of the host are internal
// clients, and so are sources in clients4 and what comes in by an interface in
// clientifs; all others are external. What the host sends asks isvc4, what arrives
// xsvc4. Only where the two would not lead to the same backends does it matter
// who has sent it: there xsvc4 leads to a chain whose name begins with s, which asks
// the chain clients, and sends internal ones on to isvc4. nat-postrouting asks it of
// packets alone whose source may have to be replaced.
//
// # A new flow
//
// The kernel asks nat chains about the first packet of a flow only, and does to
// all others of the flow as to the first. One lookup, in xsvc4 or isvc4, finds the
// frontend and its number, a second one, in xsvcto or isvcto, the chain to go to.
// Rules have no variables: the number stands in the packet's priority, and is
// written as one, MAJOR:MINOR in hexadecimal. 10:a is x10, and the minor number of such
// a chain is always that of its slots. No other priority is lost but that of a
// flow's first packet, which is none when a backend is chosen.
//
// The chains are:
//
//   - x1, x2, …, s1, s2, … or i1, i2, …: as many backends as the number says. The chain
//     takes a random slot below that number, looks up the backend there, and
//     rewrites the destination. All frontends with two backends share x2: there
//     is no chain for a Service. A lookup that misses ends in "counter drop":
//     another proxy must not answer in our place. That counter should be zero.
//   - xh2, xw251 and so on: the same by another schedule; see below.
//   - xsticky, ssticky, isticky: clients come back to the backend that they had; see below.
//   - xturn, sturn, iturn: the frontend has a chain of its own, by xturn4 or iturn4.
//   - xfence, ifence: only [Frontend.Sources] may use the frontend. Others end in
//     forbidden, which drops and counts; the rest goes on by xfenced4 or ifenced4.
//     Frontends without a fence do not pay for those that have one.
//   - refuse, srefuse: no backend anywhere: RST, or ICMP port unreachable.
//   - ignore, signore: no backend here, but there could be on other nodes: silence, so
//     that the client tries again. (RST would end its attempt.) A packet that
//     begins no connection is refused all the same, by stray.
//
// What is refused or ignored leaves nothing in conntrack, where the entry of a flow
// is kept only when its first packet leaves the node or reaches a process.
//
// What no frontend matches passes on unchanged, but for ping to a VIP, which unasked
// answers by redirecting it to the node itself. It reaches filter-prerouting with
// the VIP still in it, and is refused there: the route to a VIP leads here, so
// that forwarding would send it round between node and router until its TTL
// ends. That is before routing, which drops what a process of the host has sent and
// the router sends back. If the VIP is an address of this node as well, an unserved port is the
// host's own and is left alone. Neighbour discovery for the VIP is let through.
//
// # Schedulers
//
// What follows the x, s or i in a chain's name says how it finds the slot:
//
//	x2      a random number                           [Random]
//	xw251   a random number, a slot of the table      [Random], where weights differ
//	xr2/…   a counter that goes round                 [RoundRobin]
//	xh2     a hash of the client's address            [SourceHash]
//	xm251   a hash of the client's address and port,
//	        a slot of the table                       [Maglev]
//
// The chains with a 1 are always there: they are the patterns that others are
// copied from. Some stay when nothing leads there any more: their number
// will be wanted again.
//
// A counter belongs to a rule. Frontends that shared it would take one another's
// turns, so that each of two which are used alternately would meet half of its
// backends only. Hence each has a chain of its own, such as
// xr2/192.0.2.1/tcp/80, and its turn goes on for as long as the number of
// backends stays.
//
// xslots4 holds the tables: 251 slots for each frontend with up to 50 backends,
// more for more, shared out by Maglev's rule. If one backend of ten goes, its
// tenth of the slots moves to others, and some five per cent besides. The table
// follows from the backends' addresses and weights alone, and seeds are in the
// rules' text, so that nodes which know the same backends give a flow to the same.
// Internal clients go by the x table as well where their backends are the same. xeps4
// lists the backends of these frontends, too; no packet asks for them there.
//
// # Affinity
//
// A frontend with affinity ([Frontend.Affinity]) sends its flows to xsticky or
// isticky. If aff4 knows the client, the flow goes to the backend that it had.
// Others go on by xsched4 or isched4 to the chain of the scheduler.
//
// aff4 is learned by the kernel. It holds backends, not slots, which are other
// pods as soon as the number of backends changes. When the destination of a new
// flow is settled, nat-postrouting (or nat-learn-input) finds that its VIP is in late4
// and sticky4, and learning finds the frontend in learn4. A chain such as learn10800, named by
// seconds, notes the backend and lets the entry live for that long from now: each
// new flow does, packets of open flows do not. There is a chain for each timeout,
// since the statement takes no variable. VIPs that neither have affinity nor backends
// on other nodes pay for one lookup in late4 a flow.
//
// A client must not follow an entry to what is no backend any more, or never was
// for its kind: it may be draining, or its address be another tenant's by now. No
// rule of nft 1.0.6 can look up what a map says in another set before the flow is
// translated, so it is done in two places. The transaction that takes backends out
// of the slots puts them into fading4: a flow that is on its way to one gets there, and learning
// leaves no entry, which the client's next flow would follow, and renew, and so on without end.
// Another deletes the entries which lead there, and when no packet is on its way any more that
// followed one, the backends go from xback4 as well. For these
// packets Set waits: a grace period of RCU, mostly 5 to 18 ms, where a frontend with affinity loses a backend. A change of
// who is a client on this node deletes the entries that would lead somebody of the other kind
// astray. And each chain learn… first goes to back, which looks the chosen backend up in xback4
// or iback4.
// What is not in there ends in stale, which deletes the entry and drops the packet:
// the client sends another, and finds another backend. So a flow that takes longer than that
// between two hooks loses one packet, and none gets to the wrong place.
//
// Entries are not part of a State. They outlive transactions and the process, and
// do not count as a change by somebody else; a table that is loaded anew is empty.
// The map has room for 65,536 clients of each family. Who finds it full is served
// without being remembered, and counted by the chain full, as [Status] says.
// To list a map takes the kernel a time that grows with the square of its size
// (200 ms for a full one), which is why it is not larger.
//
// The rules of stale and learn… stand in no text. nft 1.0.6 lists them, but aborts when
// it shall load those for IPv6, whose keys need ten registers: a system that loads
// its own listing when it starts, such as /etc/nftables.conf, would be without any rule.
// Hence they are there for IPv4 alone, until an IPv6 frontend has affinity: then another
// table takes the place of this one. What "nft list table inet fanfare" shows without
// them can be loaded again.
//
// # Source addresses
//
// nat-postrouting asks nothing about flows that are not translated. It leaves the
// client's address alone but in two cases, which go to new-source. One is a backend on another node, for an external client, if the
// target says [Masquerade]: the reply must come back through here to be translated
// back. It goes by new-source-remote, where backends in never4 are let off: their
// network brings the reply back. The other is a pod that the VIP led to itself
// (hairpin), which would answer itself directly and not understand; never4 says
// nothing about it. Processes of the host have an address of the node already, to
// which replies return; but where the VIP is on an interface of the node, as
// kube-proxy in ipvs mode has it, their address is the VIP itself. Such a packet
// goes to new-source when it leaves: the reply would go to whichever node has it.
//
// new-source masquerades, with a port fully at random since other nodes choose
// ports too, unless map sources names another chain: masquerade-random,
// masquerade-kept, or snat-fully-random, snat-random and snat-kept, which take the
// address from from4. That address must be the node's own, and one to which
// others find the way: else the replies go elsewhere, or nowhere. Nobody checks
// that here, since an address may come later than we do. It should be no VIP,
// whose route leads to other nodes as well.
//
// A State with another policy ([SNAT]) changes these maps in the same transaction
// as all else. New flows go by the new policy, open ones keep their source.
//
// # Marks
//
// No rule of ours heeds a packet mark, and none sets one unless SNAT.Mark asks for
// it. Then the first packet of a flow that gets a new source, and no other, goes
// through a chain such as mark-0x4000-0x4000, named by value and mask, which
// changes the bits of the mask alone. It is seen by filter chains at postrouting
// behind priority 99, and by tc. (mark-0x1-0x1 is always there, as the pattern that
// the others are copied from.)
//
// kube-proxy masquerades what is marked 0x4000/0x4000, at priority 100. With that
// mark our flows would match its rule too, but the kernel asks no nat chain about
// a source that has been chosen: ours, at 99, decides address and port. A rule of
// others that matches the mark at an earlier hook never sees it.
//
// # Sources that may not
//
// [Frontend.Sources] is heeded as kube-proxy heeds loadBalancerSourceRanges: for
// every client, pods and processes of the host included, by the address that it
// comes with, and whether or not there is a backend. What is forbidden is dropped
// without a word, and nothing of it stays in conntrack. Ping and ports that are not
// served are no frontends, and answer anybody. A prefix of length 0 lets in all of
// its family; no prefix of the VIP's family lets in nobody. A host that has the VIP
// on an interface of its own sends from the VIP to itself: it is let in if the VIP
// is in Sources, and not, as with kube-proxy, if the node's other address is.
//
// A list costs those who are on it or not two lookups for a flow, and nobody else
// anything. The kernel copies allowed4 to change it: 12 ms of a core where it has
// 50,000 prefixes, for a Service whose list changes, comes or goes, and for no other
// change.
//
// Nat chains see first packets only, so a list that became shorter is carried out
// in conntrack as well: the entries of flows that it forbids are deleted, and what
// comes next of them is a first packet, which is dropped. What the pod still sends
// goes to the client without translation, who has no use for it.
//
// # Addresses that are ours and no VIP
//
// The first packet to one is refused by nat-prerouting, before it is routed and
// before anybody else translates it, so that nothing of it stays in conntrack. Else
// it would loop like one to an unserved port, and worse: a SYN that comes before its
// VIP exists would leave a conntrack entry without translation, which keeps that
// client's port away from the rules for as long as it lives, 120 s after the last
// try. What is no first packet, because conntrack finds it invalid or the host itself
// has sent it, is refused by filter-prerouting.
// Addresses that are local to the node are exempt, should a pool contain one,
// and so are packets of the host itself when they leave, for which the VIP may be on
// another node.
//
// Where no such prefix covers the VIP, entries like that can exist. Set deletes
// them when a VIP or a frontend becomes programmed.
//
// # How flows end
//
// A flow does what its conntrack entry says, for as long as packets come: rules
// are for first packets. So what must end is deleted there, after Set has returned,
// by a sweep: the kernel walks its whole table for that (9 ms for 262,144 buckets),
// therefore one sweep serves many changes, and the next one waits twenty times as
// long as it took, up to a second. An entry is deleted only if its destination is a VIP's port or was, and
// its replies come from a backend that we had there, or if no one translated it and
// the VIP is new. What is wanted at the time of the sweep counts: a backend that
// came back meanwhile keeps its flows.
//
//   - UDP and SCTP leave a backend as soon as it gets no new flows. If it drains
//     ([Frontend.Draining]) and there is no other, they leave when there is one.
//   - A connection of TCP stays while its backend is in a Target or drains. When it
//     is in neither any more, its entry goes within a second. The client's next
//     packet is then a first packet that begins no connection, and is answered by
//     RST: by stray, or by a backend that does not know it either. Until then the entry would keep the client's port from
//     everybody for days, if both ends had died silently.
//   - A SYN that a backend has not answered half a second after it got no new flows
//     any more, as when its node has died, is forgotten: the next one finds another.
//   - A flow whose source became forbidden ends at once, without a word.
//   - A process that finds a table of ours can not know whether the sweep of the last
//     change was made. Flows of the frontends that it finds and keeps end if their
//     backend is none that it knows.
//   - A frontend that goes leaves its connections alone, as kube-proxy does. So does
//     a VIP that goes, unless it is in State.Owned: then the entries go within a
//     second, lest they lead astray the address's next clients, and what still comes
//     is answered by RST.
//
// A client that only listens would hear nothing of the end: an RST that it believes
// has the sequence number that it expects, which conntrack does not tell. So it is
// asked: a segment with SYN and ACK, from the VIP, in the midst of its connection
// makes it send an ACK (RFC 5961 §4.2), which is a next packet. That takes
// CAP_NET_RAW; without it, its own keepalive or its next word does. A FIN as the next
// packet is invalid to conntrack and vanishes, as does every such packet where
// net.netfilter.nf_conntrack_tcp_loose is 0.
//
// stray is asked where a choice is by chance, among several backends: a packet in
// the middle of a connection that conntrack does not know, because the entry was
// deleted, or the whole table was, or a router has sent it to another node than
// before, would meet the right backend by luck and a wrong one mostly. It is asked
// for clients outside even where a single backend is left. A router moves many
// connections at a time, always to a node with other backends, and one of those need
// not refuse them: while it remembers an earlier connection of the same client's port
// (TIME_WAIT) it answers with an ACK, which tells the client nothing, so that it
// would go on trying. A client on this node is moved by nobody: its single backend,
// or one chosen by a hash of the flow, gets the packet, so that a connection outlives
// the loss of its entry if its source is not replaced.
//
// Who is moved to a node that has an entry of the client's port already is not refused. Such entries
// are of connections that have ended (nf_conntrack_tcp_timeout_time_wait, two minutes),
// or of a SYN that was sent twice and that two nodes have seen. Conntrack takes the packets for that connection's. They are ahead of its
// window, hence invalid, and vanish as those of open connections do: a rule can not tell
// the two apart, since an invalid packet has no entry to ask about. The client waits until it gives up.
// If the port came again within milliseconds they fit that window, and the ended
// connection's backend resets them. So Set deletes entries of connections that have ended,
// those of the fast path as well, of a VIP of State.HandOn that is in State.Taking: each time
// that this node takes it, or takes it back, and before it can be announced.
//
// # Connections that another node has
//
// A VIP that moves from one node to another within a link leaves its connections behind: the new
// node has no entries for them, and would refuse them. State.HandOn says which node
// had the VIP before. There the entries are, and as long as it forwards, the connections live.
// So packets of TCP for the VIP that begin nothing and are of no entry are sent there as they
// are, before a backend is chosen and before stray; the other node translates them, and what
// its pods answer goes to the client without us.
//
// It is done by tables of their own, ip fanfare-handon and ip6 fanfare-handon, which exist only
// while there is something to hand on:
//
//	hook        priority  chain       what it does
//	prerouting  -102      prerouting  sends to unknown what begins nothing and is new to conntrack,
//	                                  or invalid and FIN or RST
//	                      unknown     sends a copy to the other node, and drops the packet
//
//	map via         VIP . interface : the other node's address on the link
//	set nodes       hardware addresses of other nodes: what comes from them goes no further
//
// The statement is dup, which nftables has for the families ip and ip6 only (CONFIG_NFT_DUP_IPV4 and _IPV6).
// The copy is routed by the interface that the packet came in by, to the address in the map; it passes OUTPUT and POSTROUTING
// untracked, with the client's source, a TTL that is one less, and no redirect of ICMP. It asks neither rp_filter nor ip_forward here, nor
// FORWARD of anybody; a chain at OUTPUT that drops what it does not know drops it. The
// packet itself is dropped before conntrack has confirmed its entry, so that nothing
// of these connections stays here, and each of their packets is new again: a route with a mark would leave entries, which
// keep a client's port away from the rules for minutes.
//
// Invalid packets may be of open connections of this node, out of their window; the other
// node would refuse those. So of them only FIN and RST go there, which it drops if it does
// not know them, as any node does. Where nf_conntrack_tcp_loose is 0 all packets in the middle of an unknown
// connection are invalid, and nothing but those is handed on. UDP and SCTP are not handed on.
//
// Two nodes never send a packet back and forth: what comes from the hardware address of another
// node is not handed on. A packet that nobody knows costs one more hop, and is refused by the other
// node. Connections that the fast path has there stay in it, and here it takes none of them: it
// takes a connection by its SYN. But one with the port of a client whose earlier connection has ended in the
// fast path, and that it has not forgotten yet, it takes for that one.
//
// With iptables FANFARE-HANDON does the same in the table mangle, by the target TEE (CONFIG_NETFILTER_XT_TARGET_TEE), for
// what is in the set fanfare-handon4. What the kernel cannot do is in [Status].HandOnError, and stops nothing else.
//
// # Others in the same kernel
//
// kube-proxy translates a Service's VIP too, at priority -100. The nat chains of
// all tables, and those of iptables, are run by one core in the order of their
// priorities, and the first to translate a flow wins: that is us, by -101, and
// postrouting by 99. A CNI that translates VIPs before
// netfilter (Cilium instead of kube-proxy, Calico with eBPF) goes first.
//
// Filter chains of other tables run as ever, and what one of them drops no other
// can accept. Where the chain FORWARD of iptables drops all that it does not know,
// as Docker has it, we keep one chain of our own in that table, FANFARE-FORWARD,
// which accepts flows that were translated on their way to an address of ours. It
// is asked last, so that whatever others drop for a reason stays dropped. The
// tables of iptables-nft and iptables-legacy are two: each of them that drops has
// the chain. Changes of the former are heard of at once, of the latter found by
// [Proxy.Recheck]. A forward chain that drops and is not of iptables must accept
// our packets, to backends' addresses, by itself.
//
// # Obstacles
//
// Variables, chains of others and network plug-ins can swallow our traffic, or take
// it away, and we may not change them. A Proxy looks for them, beside Set: after the first
// one, when a chain that our packets meet changes, with each [Proxy.Recheck], and every few
// seconds while there is one. It says what is certain. Of a chain it takes flows as there
// could be, from a client nobody knows to each of some backends, and leads them through the
// rules as the kernel holds them; what it does not know of a packet, or does not
// understand of a rule, could go either way. A chain that drops all of them is an
// obstacle, one that drops some is a policy. A variable that matters only for
// some clients, as rp_filter does, is an obstacle when the kernel counts packets
// that it drops for it.
//
// Ping is answered from the first address of the interface by which it came,
// with the VIP put back as the source. By an interface without an address of
// that family the kernel drops it.
//
// # The table's version, and repair
//
// An empty chain named schema-N-TEXT-RULES says what made the table: TEXT is a
// hash of the text that was loaded, RULES one of the rules, and of what the sets are, as
// the kernel showed them afterwards. A process that finds a table of its own TEXT goes on with it
// and changes only elements that differ. One whose rules or sets somebody changed is
// replaced by nft in a single transaction, elements and all; connections are not
// interrupted.
//
// A table of another TEXT, as after an upgrade, works, and must until the end. The
// kernel shows sets of intervals a moment after the rules of the same transaction,
// and hides those of a deleted table from packets that are still in its chains. So
// another table, fanfare-spare, works while the new one is made: both are loaded
// dormant and then woken, and rules are flushed before sets go. Not a packet of
// some thousand in that time goes astray. Whoever finds a fanfare-spare that an
// upgrade left behind deletes it.
//
// A Proxy listens to the notifications of nftables (NFNLGRP_NFTABLES), leaves
// aside its own and those of other tables, and tells on [Proxy.Changed]. The
// next Set reads the kernel's table, compares, repairs, and says in
// [Proxy.Status] what was wrong.
//
// # Iptables instead
//
// [ModeIPTables] renders the same State for kernels and systems without a usable
// nftables. [ModeAuto] tries: nft checks the rules against the kernel without loading
// them, and only if that fails iptables is asked to take one rule of each kind that is
// needed. What was missing is in [Status]. A mode that starts puts its rules
// beside those of the other, which forward until then, and removes them after its
// first Set; of two iptables (iptables-nft, iptables-legacy) the one is taken that has
// our chains, else the one that has kube-proxy's or the kubelet's, else the newer.
//
// "iptables-save" shows what is ours by the names FANFARE-… and FAN-…, for IPv4, and
// "ip6tables-save" the same for IPv6. These are the rules of others' chains that lead
// there, each the first of its chain: KUBE-SERVICES comes after it, and a flow that
// has been translated is not asked about again.
//
//	table   chain        to                    what it does
//	mangle  PREROUTING   FANFARE-HANDON        hands on what another node has
//	raw     PREROUTING   FANFARE-UNASSIGNED    keeps addresses that are ours and no VIP out of conntrack
//	nat     PREROUTING   FANFARE-ARRIVING      chooses a backend for what arrives
//	nat     OUTPUT       FANFARE-LEAVING       chooses a backend for processes of the host
//	nat     POSTROUTING  FANFARE-POSTROUTING   chooses the source that the backend sees
//	filter  INPUT        FANFARE-PORTS         refuses frontends without backends where the node has the VIP
//	filter  FORWARD      FANFARE-FILTER        refuses what is still for a VIP, or for an address that is none
//	filter  OUTPUT       FANFARE-OUTPUT        refuses it for processes of the host
//
// Jumps of Calico (cali-…) may come first: they take nothing from us, and Calico puts
// them back in front of whatever is before them. The rules ask sets of ipset, of which
// each has a twin in 6:
//
//	fanfare-vips4      the VIPs
//	fanfare-owned4     State.Owned
//	fanfare-clients4   LocalClients.CIDRs
//	fanfare-never4     SNAT.Never
//	fanfare-handon4    VIPs of State.HandOn
//	fanfare-xdrop4     VIP, port: no backend, Miss is Drop, for external clients
//	fanfare-idrop4     the same for internal clients
//	fanfare-xreject4   VIP, port: no backend, Miss is Reject, for external clients
//	fanfare-ireject4   the same for internal clients
//	fanfare-limited4   VIP, port: only some sources may use it
//	fanfare-sources4   VIP, port, network that may
//	fanfare-aff4-HASH  clients that come back to one backend of one frontend, until the timeout
//
// FANFARE-ARRIVING answers ping, tells internal clients from external ones, and goes to
// FANFARE-X or FANFARE-I. There a tree begins, since iptables has no maps: each chain
// asks about the next four bits in which its addresses differ, FAN-x-192.0.2.0/28 for
// instance, so that a packet is compared some eight times a level and ten thousand
// VIPs are four levels. It leads to the frontend's chain, FAN-x-t80-192.0.2.1 (t, u and
// s for TCP, UDP and SCTP), by way of FAN-x-192.0.2.1 if the VIP has several. What is too
// long for a name, as most of IPv6 is, is hashed. Where external and internal clients
// find the same, both use the chain with x.
//
// A frontend's chain has one rule for each backend: "statistic --mode random" gives
// each the share of its weight, "--mode nth" each its turn ([RoundRobin]), and a hash
// of the client's address each its clients ([SourceHash]). That is "cluster" over IPv4 for up to 32 backends, as many as
// it can tell apart, and chooses the same as nftables would. Of an IPv6 address it sees the first 32
// bits alone; there, and for more backends, it is a program of the packet filter with another hash: nodes in iptables mode agree
// with one another, and not with those in nftables mode. Backends that shall not see
// the client come last, after a rule that marks the packet. With Affinity a
// backend has a chain of its own, FAN-x-b-HASH, which notes the client in the backend's
// set; those sets are asked first. A set belongs to the backend, so that no other one
// inherits its clients, and goes with it.
//
// A nat chain of iptables can not drop. Where there is no backend, the source may not
// use the frontend, or a packet begins no connection and its backend would be chosen by chance (stray, above), the flow is
// translated to what it is already, so that no other
// proxy translates it, and the filter refuses or drops what is still for the VIP. raw
// can not refuse either: what is for an address that is ours and no VIP passes it
// untracked and meets FANFARE-FILTER. A process of the host that sends to such an
// address over IPv4 hears nothing: its packet comes back from the router with a source of
// our own, and the routing drops it before any filter.
//
// FANFARE-POSTROUTING has a rule for each of our prefixes, by the destination that the
// client knows, so that flows of others are not touched. Behind it FANFARE-SOURCE sends
// hairpins (a program of the packet filter compares source and destination) and
// marked packets to FANFARE-REPLACE. The mark is SNAT.Mark, which stays on the packet,
// or else 0x4000/0x4000, which is taken off again. kube-proxy uses that bit to say the
// same thing, and network plug-ins know it; its rules do not see ours, since none comes
// after a source that was chosen. No other bit is changed.
//
// With iptables-legacy every change of any rule, by whomever, replaces the whole table,
// and turns begin anew.
//
// Source hash and [Maglev] ask with a program of the packet filter what slot a flow has, backend after backend.
// A program of 64 instructions, which a rule can have, is too short for the hash that nftables computes: nodes with
// iptables agree with each other, but on other backends than nodes with nftables, unless it is an IPv4 source hash over
// at most 32 backends, which has a match of its own. A table of 251 slots fits into a program, so that Maglev is for 50
// backends; more are chosen at random, by their weights, which [Status].Unsupported says, frontend by frontend.
//
// Set changes the sets by netlink, and chains by one call of iptables-restore for a
// family, which is one transaction for each table. Sets are filled before rules ask
// them, and an address comes into fanfare-vips4 when all rules for it are there. A process
// that starts reads chains and sets, changes what differs from its first State, and
// goes on with what it finds. Changes by others are heard of with iptables-nft. Of those of
// the old tables and of sets the kernel tells nobody: how many rules and entries there are is
// asked every second, and what leaves that as it was is found by [Proxy.Recheck]. The cost of a change is that of
// the programs, which grows with the rules that there are: with ten thousand VIPs 50 ms
// by iptables-nft and 170 ms by iptables-legacy, against microseconds with nftables.
//
// # The fast path
//
// Where [Options.FastPath] is given, a program on tcx hooks (package fastpath) takes flows
// before netfilter sees them. It takes what it does as the rules would: flows of TCP and UDP that
// clients outside begin by an interface of State.Outward, to frontends whose backends for such clients
// are all on this node, with the scheduler [Random], without affinity and without a list of
// sources. All that have a backend's address and port in common must be like that. The others are left to
// the rules, as [Status].FastPath says for each, and so is what the program does not find in its tables.
//
// The rules know all frontends and backends, taken or not. A Set first has the fast path
// take no more flows of what changes, then changes the rules, then has it take them
// again: it never chooses a backend that the rules would not. Flows that it has stay where
// they are when the rules take over the new ones, and so do flows of conntrack when it
// takes a frontend; of UDP, which has no first packet, it copies those first.
//
// Flows that it has are in no entry of conntrack, and no sweep finds them. It ends them itself,
// for the same reasons and as soon: a backend that is neither in a Target nor drains, a source that may
// not use the frontend any more, an address of State.Owned that is no VIP any more. The client's next packet
// is a packet in the middle of a connection that nobody knows, and stray answers it; a
// client that only listens is asked as others are. A frontend that goes leaves its connections alone.
//
// What fails of it fails no Set. New flows take the rules then, and it is tried again. Its
// programs outlive the process, and take new flows for a minute; see there.
//
// # Growing
//
// Backends know their node, and a target how those on others are reached: a
// relay without masquerade is another value of [Remote], with sets of its own.
// Cluster addresses are VIPs whose two targets are alike, and node ports
// frontends whose address is the node's: more elements, no other chains.
package proxy
