//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// Translates packets of known flows and forwards them, past the host's netfilter.
// docs/concepts/fast-path-program.md describes the maps, and doc.go what is left to the
// rules.
//
// All other packets continue unchanged, with TCX_NEXT, to other tcx programs and to the
// stack. A packet of a flow in the table must never reach the rules untranslated: they
// would treat it as invalid and reset its connection. If the program cannot forward it, it
// translates it, and the stack fragments it or reports that its TTL has expired.

#include "kernel.h"

// The directions of flows, which are roles of interfaces too.
enum {
	OUTWARD = 1, // from a client; the interface is one on which clients' packets arrive
	INWARD = 2,  // from a backend
	// Packets to the interface may be handed to its other end directly. That end is in
	// another namespace, with no queue or program between the two.
	PEER = 4,
};

// An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
struct address {
	__u8 octets[16];
} __attribute__((aligned(4)));

// A tuple identifies a flow in one direction, by its packets before translation. Ports
// are in host byte order, so that a dump of the map is readable.
struct tuple {
	struct address source;
	struct address destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 direction;
	__u16 zero;
};

// The state of a flow in one direction.
enum {
	FLOW_OPEN = 1, // packets have arrived; from a TCP client, other than a SYN
	FLOW_FIN = 2,
	FLOW_RST = 4,
	FLOW_LEFT = 8,   // an entry without translation: the rules have the flow
	FLOW_LEAVE = 16, // the process moves the flow to the rules; see overtaken
};

// A flow says how to translate packets of one direction, and has the flow's state.
struct flow {
	struct address address; // from clients: the backend; from backends: the VIP
	__u16 port;             // its port
	__u16 client_port;      // the client's port after translation
	__u32 seen;             // seconds, CLOCK_MONOTONIC
	__u32 state;
};

struct frontend {
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 zero;
};

// A choice is the set of slots of a frontend.
struct choice {
	__u32 set;
	__u32 count;
};

struct place {
	__u32 set;
	__u32 slot;
};

struct backend {
	struct address address;
	__u16 port;
	__u16 zero;
};

// All slots of a set are equally likely, and each has two backends (Vose's alias method).
// So weights cost no further lookup.
struct slot {
	struct backend backend;
	struct backend other;
	__u32 keep; // backend is used if a random number is at most this, else other
};

struct prefix {
	__u32 length;
	struct address address;
};

struct datagram {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol;
	__u8 direction;
	__u16 zero;
};

struct ports {
	__u16 source;
	__u16 destination;
};

// The ports of a datagram, from its first fragment: later ones have none.
struct first {
	struct ports ports;
	__u32 seen;  // seconds, CLOCK_MONOTONIC
	__u32 stack; // the first fragment was left to the stack, translated: so are the others
};

// Fragments of a datagram arrive within so many seconds. Senders use a datagram's number
// again sooner than the stack's timeout of 30 s (RFC 4963).
#define FRAGMENT_SECONDS 2

// The flows of an address. The process sets flows after each walk, so that it does not drift.
struct usage {
	__s32 flows;
	__u32 rejected; // new flows, because the address has as many as there is room for others
};

// Two addresses: the sender of packets that are too large, and where it sends them.
struct pair {
	struct address from;
	struct address to;
};

// How many ICMP errors a sender was sent in the given second.
struct answers {
	__u32 second;
	__u32 count;
};

// The kernel does not limit these errors, since path MTU discovery needs them. One sender
// and destination need few: RFC 4443 §2.4 (f) has 10 each second as an example.
#define ERRORS_PER_SECOND 10

// A source whose new flows were valid on an interface in the given second; see
// valid_source.
struct source {
	struct address address;
	__u32 ifindex;
	__u32 seen;
};

#define SOURCES 256

enum counter {
	COUNT_BEGUN,  // new flows
	COUNT_FULL,   // new flows for which the table had no room, or none for their address
	COUNT_MOVED,  // new flows whose client port was in use at the backend
	COUNT_STACK,  // packets that were translated and left to the stack
	COUNT_ERRORS, // ICMP errors that were translated
	COUNT_LARGE,  // packets that were answered by an ICMP error, because they are too large
	COUNT_QUIET,  // packets that are too large and were dropped, because of the limit for ICMP errors
	COUNT_LATE,   // first fragments that later ones had overtaken
	COUNTERS = 32, // with room for more: a pinned map of another size could not be adopted
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 524288); // the loader replaces it: two for each flow
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct tuple);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct frontend);
	__type(value, struct choice);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct place);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix);
	__type(value, __u32);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

// A cache of valid sources for each CPU. It is not pinned: the next process starts empty.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SOURCES);
	__type(key, __u32);
	__type(value, struct source);
} sources SEC(".maps");

// The datagrams of flows whose first fragment has arrived.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct datagram);
	__type(value, struct first);
} datagrams SEC(".maps");

// When a fragment of a datagram was left to the stack before the first one arrived. Any
// sender can fill this map: it is apart from datagrams, so that those keep their room.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct datagram);
	__type(value, __u32);
} overtaken SEC(".maps");

// The addresses whose new flows may be taken.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct address);
	__type(value, struct usage);
} usages SEC(".maps");

// For how many more flows the table has room.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __s32);
} room SEC(".maps");

// The ICMP errors of the current second. It is not pinned: the next process starts empty.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pair);
	__type(value, struct answers);
} answered SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u64);
} statistics SEC(".maps");

// The time until which new flows may be taken, in seconds since boot.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u32);
} lease SEC(".maps");

struct ipv4 {
	__u8 version_length;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 check;
	__be32 source;
	__be32 destination;
};

struct ipv6 {
	__be32 class; // version, traffic class, flow label
	__be16 length;
	__u8 protocol;
	__u8 hop_limit;
	struct address source;
	struct address destination;
};

struct fragment6 {
	__u8 protocol;
	__u8 zero;
	__be16 offset;
	__be32 id;
};

struct tcp {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledged;
	__u8 length;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

struct udp {
	__be16 source;
	__be16 destination;
	__be16 length;
	__be16 check;
};

enum {
	TCP_FIN = 1,
	TCP_SYN = 2,
	TCP_RST = 4,
	TCP_ACK = 16,
};

enum {
	WHOLE,
	FIRST, // fragment of a datagram
	LATER,
};

// A packet has the parsed fields of a frame.
struct packet {
	struct tuple tuple;
	__u32 id;        // of a fragment's datagram
	__be32 class;    // IPv4: the type of service
	__u16 offset;    // of the layer 4 header in the frame
	__u16 size;      // with the network header; of a GSO packet, the size of a segment
	__u8 v6;
	__u8 ttl;       // TTL or hop limit
	__u8 flags;      // of TCP
	__u8 fragment;
	__u8 intact; // must not be fragmented (DF, or IPv6)
	__u8 stack;  // a later fragment, the first of which was left to the stack
};

// The coarse clock takes 30 to 40 ns less than the others; seconds suffice.
static __always_inline __u32 seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000;
}

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&statistics, &what);

	if (n)
		(*n)++;
}

// The bounds of the frame's linear part. They are volatile, so that the compiler does not
// copy them: to the verifier, a copy of 32 bits is not a pointer.
static __always_inline void *data(struct __sk_buff *skb)
{
	return (void *)(long)*(volatile __u32 *)&skb->data;
}

static __always_inline void *data_end(struct __sk_buff *skb)
{
	return (void *)(long)*(volatile __u32 *)&skb->data_end;
}

// header returns a part of the frame, and makes it linear if necessary; 0 if the frame is
// shorter. Pointers into the frame are invalid after it.
static __always_inline void *header(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *begin = data(skb) + offset;

	if (begin + size <= data_end(skb))
		return begin;
	if (bpf_skb_pull_data(skb, offset + size))
		return 0;
	begin = data(skb) + offset;
	if (begin + size <= data_end(skb))
		return begin;
	return 0;
}

static __always_inline void map4(struct address *a, __be32 v4)
{
	__u32 *words = (__u32 *)a;

	words[0] = words[1] = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	words[2] = 0xffff0000;
#else
	words[2] = 0x0000ffff;
#endif
	words[3] = v4;
}

static __always_inline __be32 ipv4_of(const struct address *a)
{
	return ((const __u32 *)a)[3];
}

static __always_inline int same(const struct address *a, const struct address *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

// A route lookup succeeds for the unspecified address as for any source.
static __always_inline int unspecified(const struct address *a, int v6)
{
	const __u32 *x = (const __u32 *)a;

	return !x[3] && (!v6 || !(x[0] | x[1] | x[2]));
}

// parse4 and parse6 read the network header; false if the packet is left to the stack.
static __always_inline int parse4(struct __sk_buff *skb, struct packet *p)
{
	struct ipv4 *ip = header(skb, ETH_HLEN, sizeof(*ip));
	__u16 fragment;

	if (!ip || ip->version_length != 0x45) // options are for the stack
		return 0;
	p->size = swap16(ip->length);
	if (p->size < sizeof(*ip) || p->size + ETH_HLEN > skb->len)
		return 0;
	fragment = swap16(ip->fragment);
	p->fragment = fragment & 0x1fff ? LATER : fragment & 0x2000 ? FIRST : WHOLE;
	p->intact = !!(fragment & 0x4000);
	p->id = ip->id;
	p->class = ip->tos;
	p->ttl = ip->ttl;
	p->offset = ETH_HLEN + sizeof(*ip);
	p->tuple.protocol = ip->protocol;
	map4(&p->tuple.source, ip->source);
	map4(&p->tuple.destination, ip->destination);
	return 1;
}

static __always_inline int parse6(struct __sk_buff *skb, struct packet *p)
{
	struct ipv6 *ip = header(skb, ETH_HLEN, sizeof(*ip));
	struct fragment6 *f;
	__u16 offset;

	if (!ip || *(__u8 *)ip >> 4 != 6)
		return 0;
	if (swap16(ip->length) + sizeof(*ip) + ETH_HLEN > skb->len || swap16(ip->length) > 0xffff - sizeof(*ip))
		return 0;
	p->v6 = p->intact = 1;
	p->size = swap16(ip->length) + sizeof(*ip);
	p->class = ip->class;
	p->ttl = ip->hop_limit;
	p->offset = ETH_HLEN + sizeof(*ip);
	p->tuple.protocol = ip->protocol;
	p->tuple.source = ip->source;
	p->tuple.destination = ip->destination;
	if (ip->protocol != IPPROTO_FRAGMENT)
		return 1;
	f = header(skb, ETH_HLEN + sizeof(*ip), sizeof(*f));
	if (!f)
		return 0;
	offset = swap16(f->offset);
	p->fragment = offset & 0xfff8 ? LATER : offset & 1 ? FIRST : WHOLE;
	p->id = f->id;
	p->offset += sizeof(*f);
	p->tuple.protocol = f->protocol;
	return 1;
}

static __always_inline void datagram_of(const struct packet *p, struct datagram *d)
{
	d->source = p->tuple.source;
	d->destination = p->tuple.destination;
	d->id = p->id;
	d->protocol = p->tuple.protocol;
	d->direction = p->tuple.direction;
	d->zero = 0;
}

// recall sets the ports of a later fragment; false if the first one has not arrived. Then the
// stack gets all fragments: it would wait for a first one that was forwarded here.
static __noinline int recall(struct packet *p)
{
	__u32 now = seconds();
	struct datagram d;
	struct first *first;

	datagram_of(p, &d);
	first = bpf_map_lookup_elem(&datagrams, &d);
	if (!first || now - first->seen > FRAGMENT_SECONDS) {
		bpf_map_update_elem(&overtaken, &d, &now, BPF_ANY);
		return 0;
	}
	p->tuple.source_port = first->ports.source;
	p->tuple.destination_port = first->ports.destination;
	p->stack = first->stack;
	return 1;
}

// remember records a first fragment, for recall.
static __noinline int remember(struct packet *p, __u32 stack)
{
	struct first first = {.ports = {p->tuple.source_port, p->tuple.destination_port}, .seen = seconds(), .stack = stack};
	struct datagram d;

	datagram_of(p, &d);
	bpf_map_update_elem(&datagrams, &d, &first, BPF_ANY);
	return 0;
}

// is_overtaken reports whether the stack has a later fragment of the datagram already.
static __noinline int is_overtaken(struct packet *p)
{
	struct datagram d;
	__u32 *seen;

	datagram_of(p, &d);
	seen = bpf_map_lookup_elem(&overtaken, &d);
	return seen && seconds() - *seen <= FRAGMENT_SECONDS;
}

// parse_ports reads the layer 4 header.
static __always_inline int parse_ports(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	__u32 length = sizeof(struct udp);

	if (p->tuple.protocol == IPPROTO_TCP) {
		struct tcp *tcp = header(skb, offset, sizeof(*tcp));

		if (!tcp || tcp->length < 0x50)
			return 0;
		length = tcp->length >> 4 << 2;
		p->flags = tcp->flags;
		p->tuple.source_port = swap16(tcp->source);
		p->tuple.destination_port = swap16(tcp->destination);
	} else {
		struct udp *udp = header(skb, offset, sizeof(*udp));

		if (!udp)
			return 0;
		p->tuple.source_port = swap16(udp->source);
		p->tuple.destination_port = swap16(udp->destination);
	}
	if (offset - ETH_HLEN + length > p->size)
		return 0;
	if (skb->gso_size)
		p->size = offset - ETH_HLEN + length + skb->gso_size;
	return 1;
}

// route looks up the route of a packet with these addresses, received on fib->ifindex.
static __always_inline long route(struct __sk_buff *skb, struct bpf_fib_lookup *fib, const struct packet *p,
				  const struct address *from, const struct address *to, __u32 flags)
{
	if (p->v6) {
		fib->family = AF_INET6;
		fib->flowinfo = p->class & swap32(0x0fffffff);
		__builtin_memcpy(fib->src, from, 16);
		__builtin_memcpy(fib->dst, to, 16);
	} else {
		fib->family = AF_INET;
		fib->tos = p->class;
		fib->src[0] = ipv4_of(from);
		fib->dst[0] = ipv4_of(to);
	}
	fib->l4_protocol = p->tuple.protocol;
	return bpf_fib_lookup(skb, fib, sizeof(*fib), flags);
}

// leased reports whether a process maintains the maps. Without one, changes of interfaces
// and backends would go undetected.
static __always_inline int leased(void)
{
	__u32 zero = 0, *until = bpf_map_lookup_elem(&lease, &zero);

	return until && *until >= seconds();
}

static __always_inline int has_role(__u32 ifindex, __u32 role)
{
	__u32 *roles = bpf_map_lookup_elem(&interfaces, &ifindex);

	return roles && *roles & role;
}

// route_flow is route for packets of a flow. Towards backends it also looks up the
// neighbour. If that is unknown, bpf_redirect_neigh resolves it.
static __always_inline int route_flow(struct __sk_buff *skb, struct bpf_fib_lookup *fib, const struct packet *p, const struct address *to)
{
	long found = route(skb, fib, p, &p->tuple.source, to, p->tuple.direction == OUTWARD ? 0 : BPF_FIB_LOOKUP_SKIP_NEIGH);

	if (found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		fib->dmac[0] = 1; // a group address, which no neighbour has: unknown
		return BPF_FIB_LKUP_RET_SUCCESS;
	}
	return found;
}

// send forwards a packet by the route that route_flow found. A packet that is handed to the
// interface's other end bypasses queues, the neighbour table and the CPU's backlog.
static __always_inline long send(struct __sk_buff *skb, const struct bpf_fib_lookup *fib, __u8 direction)
{
	struct bpf_redir_neigh next = {.nh_family = fib->family};
	__u8 *macs = data(skb);

	if (direction == OUTWARD && !(fib->dmac[0] & 1) && has_role(fib->ifindex, PEER) && leased() && (void *)(macs + 12) <= data_end(skb)) {
		__builtin_memcpy(macs, fib->dmac, 6);
		__builtin_memcpy(macs + 6, fib->smac, 6);
		skb->mark = 0; // as the kernel does for packets to another namespace
		return bpf_redirect_peer(fib->ifindex, 0);
	}
	__builtin_memcpy(next.nh, fib->dst, 16);
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

// sum6 replaces an IPv6 address in the checksum at an offset.
static __always_inline void sum6(struct __sk_buff *skb, __u32 offset, __u32 difference, __u64 flags)
{
	// The network card's checksum of the whole frame (CHECKSUM_COMPLETE) stays right: the
	// changes of address and checksum cancel out. Kernels without BPF_F_IPV6 modify it, as
	// is right for IPv4 only, whose header has its own checksum; correct it.
	if (bpf_l4_csum_replace(skb, offset, 0, difference, BPF_F_PSEUDO_HDR | BPF_F_IPV6 | flags) != -EINVAL)
		return;
	bpf_l4_csum_replace(skb, offset, 0, difference, BPF_F_PSEUDO_HDR | flags);
	bpf_csum_update(skb, difference);
}

// resum returns a header's checksum after one 32-bit word and one 16-bit word were replaced
// (RFC 1624 §3).
static __always_inline __u16 resum(__u16 check, __u32 from, __u32 to, __u16 from16, __u16 to16)
{
	__u32 sum = (__u16)~check;

	sum += (~from & 0xffff) + (~from >> 16) + (to & 0xffff) + (to >> 16) + (__u16)~from16 + to16;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

// translate rewrites addresses, ports, TTL and checksums as the flow says; false if a header
// cannot be read.
static __always_inline int translate(struct __sk_buff *skb, const struct packet *p, const struct flow *flow, __u8 new_ttl)
{
	int outward = p->tuple.direction == OUTWARD, udp = p->tuple.protocol == IPPROTO_UDP;
	__u32 offset = p->offset & 127;
	__u32 sum_at = offset + (udp ? 6 : 16);
	__u64 flags = udp ? BPF_F_MARK_MANGLED_0 : 0; // a UDP checksum of 0 means none: keep it
	__u32 difference = 0, ports_before = 0, ports_after = 0, *ports;
	__be32 before = 0, after = ipv4_of(&flow->address);

	if (p->v6) {
		struct ipv6 *ip = header(skb, ETH_HLEN, sizeof(*ip));
		struct address *a, old;

		if (!ip)
			return 0;
		a = outward ? &ip->destination : &ip->source;
		old = *a;
		difference = bpf_csum_diff((__be32 *)&old, 16, (__be32 *)&flow->address, 16, 0);
		*a = flow->address;
	} else {
		struct ipv4 *ip = header(skb, ETH_HLEN, sizeof(*ip));
		__u16 *ttl, ttl_before;
		__be32 *a;

		if (!ip)
			return 0;
		a = outward ? &ip->destination : &ip->source;
		ttl = (__u16 *)&ip->ttl;
		ttl_before = *ttl;
		before = *a;
		*a = after;
		ip->ttl = new_ttl;
		ip->check = resum(ip->check, before, after, ttl_before, *ttl);
	}
	if (p->fragment != LATER) {
		ports = data(skb) + offset;
		if ((void *)(ports + 1) > data_end(skb))
			return 0;
		ports_before = *ports;
		((__be16 *)ports)[0] = swap16(outward ? flow->client_port : flow->port);
		((__be16 *)ports)[1] = swap16(outward ? flow->port : flow->client_port);
		ports_after = *ports;
		if (p->v6)
			sum6(skb, sum_at, difference, flags);
		else
			bpf_l4_csum_replace(skb, sum_at, before, after, BPF_F_PSEUDO_HDR | flags | 4);
		if (ports_before != ports_after)
			bpf_l4_csum_replace(skb, sum_at, ports_before, ports_after, flags | 4);
	}
	// IPv6 has no header checksum that cancels the change of the hop limit in
	// CHECKSUM_COMPLETE: let the helper correct it.
	if (p->v6 && new_ttl != p->ttl)
		bpf_skb_store_bytes(skb, ETH_HLEN + 7, &new_ttl, 1, BPF_F_RECOMPUTE_CSUM);
	return 1;
}

// The header of an ICMP error, before the quoted packet.
struct icmp {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 mtu;
};

struct error4 {
	struct ipv4 ip;
	struct icmp icmp;
};

struct error6 {
	struct ipv6 ip;
	struct icmp icmp;
};

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

// quote4 and quote6 write the headers of a Packet Too Big error before the packet, of which
// size bytes remain as the quote (RFC 1191 §4, RFC 4443 §3.2).
static __always_inline int quote4(struct __sk_buff *skb, const struct packet *p, __u32 mtu, __u32 size)
{
	struct error4 e = {
		.ip = {
			.version_length = 0x45,
			.length = swap16(sizeof(e) + size),
			.fragment = swap16(0x4000),
			.ttl = 64,
			.protocol = IPPROTO_ICMP,
			.source = ipv4_of(&p->tuple.destination),
			.destination = ipv4_of(&p->tuple.source),
		},
		.icmp = {.type = 3, .code = 4, .mtu = swap32(mtu)},
	};
	__be32 quoted[10] = {};

	if (bpf_skb_adjust_room(skb, sizeof(e), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(e), quoted, size == 40 ? 40 : 28))
		return 0;
	e.ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&e.ip, sizeof(e.ip), 0));
	e.icmp.check = fold(bpf_csum_diff(0, 0, quoted, sizeof(quoted), bpf_csum_diff(0, 0, (__be32 *)&e.icmp, sizeof(e.icmp), 0)));
	return !bpf_skb_store_bytes(skb, ETH_HLEN, &e, sizeof(e), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int quote6(struct __sk_buff *skb, const struct packet *p, __u32 mtu, __u32 size)
{
	struct error6 e = {
		.ip = {
			.class = swap32(0x60000000),
			.length = swap16(sizeof(e.icmp) + size),
			.protocol = IPPROTO_ICMPV6,
			.hop_limit = 64,
			.source = p->tuple.destination,
			.destination = p->tuple.source,
		},
		.icmp = {.type = 2, .mtu = swap32(mtu)},
	};
	__be32 quoted[15] = {}, pseudo[2] = {swap32(sizeof(e.icmp) + size), swap32(IPPROTO_ICMPV6)};
	__u32 sum;

	if (bpf_skb_adjust_room(skb, sizeof(e), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(e), quoted, size == 60 ? 60 : 48))
		return 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)&e.ip.source, 32, 0);
	sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), sum);
	sum = bpf_csum_diff(0, 0, (__be32 *)&e.icmp, sizeof(e.icmp), sum);
	e.icmp.check = fold(bpf_csum_diff(0, 0, quoted, sizeof(quoted), sum));
	return !bpf_skb_store_bytes(skb, ETH_HLEN, &e, sizeof(e), BPF_F_RECOMPUTE_CSUM);
}

// may_refuse reports whether a sender gets another ICMP error about a destination. Two CPUs
// may count one error twice, or not at all: the limit need not be exact.
static __noinline int may_refuse(struct packet *p)
{
	struct pair pair = {.from = p->tuple.source, .to = p->tuple.destination};
	struct answers now = {.second = seconds(), .count = 1}, *had = bpf_map_lookup_elem(&answered, &pair);

	if (!had || had->second != now.second) {
		bpf_map_update_elem(&answered, &pair, &now, BPF_ANY);
		return 1;
	}
	return had->count++ < ERRORS_PER_SECOND;
}

// refuse answers a packet that is too large for the next link by an ICMP error, with the
// packet's destination as source. The stack's error would quote the translated packet, which
// the sender does not know.
static __noinline int refuse(struct __sk_buff *skb, struct packet *p, __u32 mtu)
{
	__u32 size = (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + (p->tuple.protocol == IPPROTO_TCP ? sizeof(struct tcp) : sizeof(struct udp));
	__u8 macs[12], swapped[12];

	if (!may_refuse(p)) {
		count(COUNT_QUIET);
		return TCX_DROP;
	}
	if (bpf_skb_load_bytes(skb, 0, macs, 12) || bpf_skb_change_tail(skb, ETH_HLEN + size, 0))
		return TCX_NEXT;
	if (!(p->v6 ? quote6(skb, p, mtu, size) : quote4(skb, p, mtu, size)))
		return TCX_DROP;
	__builtin_memcpy(swapped, macs + 6, 6);
	__builtin_memcpy(swapped + 6, macs, 6);
	if (bpf_skb_store_bytes(skb, 0, swapped, 12, 0))
		return TCX_DROP;
	count(COUNT_LARGE);
	return bpf_redirect(skb->ifindex, 0);
}

// deliver translates a packet of a flow and forwards it by the route found; without a
// route, it leaves the translated packet to the stack. All fragments of a datagram go where
// the first one goes: the stack reassembles them.
static __always_inline int deliver(struct __sk_buff *skb, struct packet *p, const struct flow *flow, const struct bpf_fib_lookup *fib, long found)
{
	if (p->fragment == FIRST)
		remember(p, found != BPF_FIB_LKUP_RET_SUCCESS);
	if (found == BPF_FIB_LKUP_RET_SUCCESS && !p->stack) {
		if (!translate(skb, p, flow, p->ttl - 1))
			return TCX_NEXT;
		return send(skb, fib, p->tuple.direction);
	}
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED && p->intact && p->fragment == WHOLE &&
	    p->offset == ETH_HLEN + (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)))
		return refuse(skb, p, fib->tot_len);
	if (p->fragment == LATER && !p->stack)
		return TCX_DROP; // the first one has been forwarded, so that the stack would wait for it
	count(COUNT_STACK);
	translate(skb, p, flow, p->ttl);
	return TCX_NEXT;
}

// forward looks up the route of a packet of an existing flow, and delivers it.
static __noinline int forward(struct __sk_buff *skb, struct packet *p, struct flow *flow)
{
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .tot_len = p->size};
	int outward = p->tuple.direction == OUTWARD;
	long found = -1;

	fib.sport = swap16(p->tuple.source_port);
	fib.dport = swap16(outward ? flow->port : p->tuple.destination_port);
	// Replies are routed with the backend's address as source: the stack routes them before
	// it reverses DNAT.
	if (p->ttl > 1)
		found = route_flow(skb, &fib, p, outward ? &flow->address : &p->tuple.destination);
	return deliver(skb, p, flow, &fib, found);
}

// valid_source reports whether the route back to the source of a new flow uses an outward
// interface. Packets from other sources, such as this node's own addresses, are left to the
// stack and its rp_filter. The result is cached for a second: most flows are from sources
// that have just opened another.
static __noinline int valid_source(struct __sk_buff *skb, struct packet *p, struct backend *b)
{
	const __u32 *words = (const __u32 *)&p->tuple.source;
	__u32 place = ((words[0] ^ words[1] ^ words[2] ^ words[3]) * 0x9e3779b1) >> 24, now = seconds();
	struct source *known = bpf_map_lookup_elem(&sources, &place);
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .tot_len = 1};

	if (known && known->seen == now && known->ifindex == skb->ifindex && same(&known->address, &p->tuple.source))
		return 1;
	fib.sport = swap16(b->port);
	fib.dport = swap16(p->tuple.source_port);
	if (route(skb, &fib, p, &b->address, &p->tuple.source, BPF_FIB_LOOKUP_SKIP_NEIGH) != BPF_FIB_LKUP_RET_SUCCESS || !has_role(fib.ifindex, OUTWARD))
		return 0;
	if (known) {
		known->address = p->tuple.source;
		known->ifindex = skb->ifindex;
		known->seen = now;
	}
	return 1;
}

// schedule selects a backend for a new flow; false if the frontend is not taken.
static __noinline int schedule(struct packet *p, struct backend *b)
{
	struct frontend front = {.address = p->tuple.destination, .port = p->tuple.destination_port, .protocol = p->tuple.protocol};
	struct prefix from = {.length = 128, .address = p->tuple.source};
	struct choice *choice = bpf_map_lookup_elem(&frontends, &front);
	struct place place;
	struct slot *slot;

	if (!choice || bpf_map_lookup_elem(&clients, &from))
		return 0;
	place.set = choice->set;
	place.slot = (__u64)bpf_get_prandom_u32() * choice->count >> 32;
	slot = bpf_map_lookup_elem(&slots, &place);
	if (!slot)
		return 0;
	*b = bpf_get_prandom_u32() <= slot->keep ? slot->backend : slot->other;
	return 1;
}

// admitting returns the usage of an address that may have another flow; else 0. An address
// may have as many flows as the table has room for others: so however many flows one has,
// there is room for the next address (dynamic thresholds, as switches share their buffers).
static __noinline struct usage *admitting(const struct address *vip)
{
	__u32 zero = 0;
	struct usage *usage = bpf_map_lookup_elem(&usages, vip);
	__s32 *left = bpf_map_lookup_elem(&room, &zero);

	if (!usage || !left)
		return 0;
	if (usage->flows < *left)
		return usage;
	__sync_fetch_and_add(&usage->rejected, 1);
	count(COUNT_FULL);
	return 0;
}

// account adds flows of an address, or removes them.
static __always_inline void account(struct usage *usage, __s32 flows)
{
	__u32 zero = 0;
	__s32 *left = bpf_map_lookup_elem(&room, &zero);

	if (usage)
		__sync_fetch_and_add(&usage->flows, flows);
	if (left)
		__sync_fetch_and_add(left, -flows);
}

// insert adds both entries of a flow, the one for replies first, and sets there to the
// client's. It returns -EEXIST if another CPU has added the client's entry.
static __noinline long insert(struct packet *p, struct backend *b, struct flow *there)
{
	__u32 now = seconds();
	struct tuple back = {
		.source = b->address,
		.destination = p->tuple.source,
		.source_port = b->port,
		.destination_port = p->tuple.source_port,
		.protocol = p->tuple.protocol,
		.direction = INWARD,
	};
	struct flow to = {.address = p->tuple.destination, .port = p->tuple.destination_port, .client_port = p->tuple.source_port, .seen = now};
	struct flow *other;
	long err = 0;
	int made = 0;

	// A client may use one port for two VIPs with the same backend, which could not
	// distinguish the two connections. So the second gets another client port.
	for (int i = 0; i < 8; i++) {
		err = bpf_map_update_elem(&flows, &back, &to, BPF_NOEXIST);
		made = !err;
		if (err != -EEXIST)
			break;
		other = bpf_map_lookup_elem(&flows, &back);
		if (other && other->port == to.port && other->client_port == to.client_port && same(&other->address, &to.address)) {
			err = 0;
			break;
		}
		back.destination_port = 1024 + ((bpf_get_prandom_u32() & 0xffff) * 64512 >> 16);
	}
	if (err) {
		count(COUNT_FULL);
		return -ENOSPC;
	}
	if (back.destination_port != p->tuple.source_port)
		count(COUNT_MOVED);
	there->address = b->address;
	there->port = b->port;
	there->client_port = back.destination_port;
	there->seen = now;
	there->state = p->tuple.protocol == IPPROTO_UDP ? FLOW_OPEN : 0; // as update_state sets it
	err = bpf_map_update_elem(&flows, &p->tuple, there, BPF_NOEXIST);
	if (!err) {
		count(COUNT_BEGUN);
		return 0;
	}
	if (made)
		bpf_map_delete_elem(&flows, &back);
	if (err != -EEXIST)
		count(COUNT_FULL);
	return err;
}

static __always_inline int is_syn(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

// delete_if_ended deletes a connection that has ended, so that a SYN begins another, and
// reports whether it did. A client's RST alone does not end it, because it may be forged:
// the backend decides whether it accepts the SYN.
static __noinline int delete_if_ended(struct packet *p, struct flow *flow)
{
	struct tuple back = {
		.source = flow->address,
		.destination = p->tuple.source,
		.source_port = flow->port,
		.destination_port = flow->client_port,
		.protocol = p->tuple.protocol,
		.direction = INWARD,
	};
	struct flow *reply = bpf_map_lookup_elem(&flows, &back);

	if (reply && !(reply->state & FLOW_RST) && !(flow->state & reply->state & FLOW_FIN)) {
		if (flow->state & FLOW_RST) {
			flow->state = FLOW_RST;
			reply->state = 0;
		}
		return 0;
	}
	if (!bpf_map_delete_elem(&flows, &p->tuple))
		account(bpf_map_lookup_elem(&usages, &p->tuple.destination), -1);
	bpf_map_delete_elem(&flows, &back);
	return 1;
}

static __always_inline int is_syn_ack(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == (TCP_SYN | TCP_ACK);
}

// delete_if_reopened handles a SYN-ACK of a backend. If this connection has ended, the
// client has opened another from the same port through the rules: the flow is deleted.
static __noinline int delete_if_reopened(struct packet *p, struct flow *flow)
{
	struct tuple there = {
		.source = p->tuple.destination,
		.destination = flow->address,
		.source_port = flow->client_port,
		.destination_port = flow->port,
		.protocol = p->tuple.protocol,
		.direction = OUTWARD,
	};
	struct flow *asked = bpf_map_lookup_elem(&flows, &there);
	struct address vip;

	// A flow that was reset and opened again has only FLOW_RST: see delete_if_ended.
	if (asked && !(flow->state & FLOW_RST) && (asked->state & (FLOW_RST | FLOW_OPEN)) != (FLOW_RST | FLOW_OPEN) &&
	    !(asked->state & flow->state & FLOW_FIN))
		return 0;
	vip = flow->address;
	if (!bpf_map_delete_elem(&flows, &there))
		account(bpf_map_lookup_elem(&usages, &vip), -1);
	bpf_map_delete_elem(&flows, &p->tuple);
	return 1;
}

// update_state records a packet in its flow. It writes only what changes, because a write
// removes the entry from the caches of other CPUs.
static __always_inline void update_state(const struct packet *p, struct flow *flow)
{
	__u32 now = seconds(), state = flow->state;

	if (is_syn(p))
		return; // a repeated SYN does not extend the timeout
	if (flow->seen != now)
		flow->seen = now;
	// A packet after a reset shows that the reset was forged or ignored.
	state = (state & ~FLOW_RST) | FLOW_OPEN;
	if (p->flags & TCP_FIN)
		state |= FLOW_FIN;
	if (p->flags & TCP_RST)
		state |= FLOW_RST;
	if (flow->state != state)
		flow->state = state;
}

#define BEGUN -2 // not a return code of tcx: another CPU has just added the flow

// begin takes a new flow and forwards its packet, or leaves both to the rules. It looks up
// the route before it adds the flow, and forwards the packet by the same route.
static __noinline int begin(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .tot_len = p->size};
	struct usage *usage;
	struct backend b = {};
	struct flow there = {};
	long err;

	if ((p->tuple.protocol == IPPROTO_TCP && !is_syn(p)) || p->ttl <= 1 || p->fragment == LATER || !p->tuple.source_port)
		return TCX_NEXT;
	if (!leased() || unspecified(&p->tuple.source, p->v6) || !has_role(skb->ifindex, OUTWARD) || !schedule(p, &b))
		return TCX_NEXT;
	fib.sport = swap16(p->tuple.source_port);
	fib.dport = swap16(b.port);
	if (route_flow(skb, &fib, p, &b.address) != BPF_FIB_LKUP_RET_SUCCESS || !has_role(fib.ifindex, INWARD) || !valid_source(skb, p, &b))
		return TCX_NEXT;
	usage = admitting(&p->tuple.destination);
	if (!usage)
		return TCX_NEXT;
	err = insert(p, &b, &there);
	if (err)
		return err == -EEXIST ? BEGUN : TCX_NEXT;
	account(usage, 1);
	return deliver(skb, p, &there, &fib, BPF_FIB_LKUP_RET_SUCCESS);
}

// leave handles a first fragment that later ones have overtaken: the stack has those. If the
// flow is new, the stack gets this fragment too, and the rules all packets of the flow. A
// known flow must keep its backend: its datagram is dropped, and the process moves it to
// conntrack with that backend.
static __noinline int leave(struct __sk_buff *skb, struct packet *p, struct flow *flow)
{
	struct flow left = {.seen = seconds(), .state = FLOW_LEFT};
	struct usage *usage;
	struct backend b;

	count(COUNT_LATE);
	if (flow) {
		__sync_fetch_and_or(&flow->state, FLOW_LEAVE);
		return TCX_DROP;
	}
	if (p->tuple.protocol != IPPROTO_UDP || !leased() || !has_role(skb->ifindex, OUTWARD) || !schedule(p, &b))
		return TCX_NEXT;
	usage = admitting(&p->tuple.destination);
	if (usage && !bpf_map_update_elem(&flows, &p->tuple, &left, BPF_NOEXIST))
		account(usage, 1);
	return TCX_NEXT;
}

// Offsets in an ICMP error.
struct quote {
	__u32 sum;     // the ICMP checksum
	__u32 outer;   // the address in the outer header that is translated
	__u32 inner;   // the quoted network header
	__u32 address; // the address in it that is translated
	__u32 ports;
};

// translate_error translates an ICMP error about a packet that was translated in the other
// direction.
static __noinline int translate_error(struct __sk_buff *skb, struct packet *p)
{
	int outward = p->tuple.direction == OUTWARD, v6 = p->v6;
	__u32 size = v6 ? sizeof(struct ipv6) : sizeof(struct ipv4);
	__u32 type_at = ETH_HLEN + size;
	struct quote q = {
		.sum = type_at + 2,
		.inner = type_at + 8,
		.ports = type_at + 8 + size,
	};
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .tot_len = p->size};
	struct tuple t = {.direction = p->tuple.direction};
	struct address to, old, receiver;
	struct ports ports, new_ports;
	struct flow *flow;
	__u32 from4, to4, difference;
	__u8 first, ttl;

	q.outer = ETH_HLEN + (v6 ? (outward ? 24 : 8) : (outward ? 16 : 12));
	q.address = q.inner + (v6 ? (outward ? 8 : 24) : (outward ? 12 : 16));
	if (p->ttl <= 1 || bpf_skb_load_bytes(skb, type_at, &first, 1))
		return TCX_NEXT;
	if (v6 ? first < 1 || first > 4 : first != 3 && first != 11 && first != 12)
		return TCX_NEXT;
	if (bpf_skb_load_bytes(skb, q.inner, &first, 1) || bpf_skb_load_bytes(skb, q.ports, &ports, 4))
		return TCX_NEXT;
	if (v6) {
		struct ipv6 ip;

		if (first >> 4 != 6 || bpf_skb_load_bytes(skb, q.inner, &ip, sizeof(ip)))
			return TCX_NEXT;
		t.protocol = ip.protocol;
		t.source = ip.destination;
		t.destination = ip.source;
	} else {
		struct ipv4 ip;

		if (first != 0x45 || bpf_skb_load_bytes(skb, q.inner, &ip, sizeof(ip)) || swap16(ip.fragment) & 0x1fff)
			return TCX_NEXT;
		t.protocol = ip.protocol;
		map4(&t.source, ip.destination);
		map4(&t.destination, ip.source);
	}
	if (t.protocol != IPPROTO_TCP && t.protocol != IPPROTO_UDP)
		return TCX_NEXT;
	// The quoted packet belongs to the other direction.
	t.source_port = swap16(ports.destination);
	t.destination_port = swap16(ports.source);
	if (!same(&p->tuple.destination, &t.destination))
		return TCX_NEXT;
	flow = bpf_map_lookup_elem(&flows, &t);
	if (!flow || flow->state & FLOW_LEFT)
		return TCX_NEXT;
	new_ports.source = swap16(outward ? flow->port : flow->client_port);
	new_ports.destination = swap16(outward ? flow->client_port : flow->port);
	to = flow->address;
	receiver = outward ? to : p->tuple.destination;
	if (route_flow(skb, &fib, p, &receiver) != BPF_FIB_LKUP_RET_SUCCESS)
		return TCX_NEXT;

	ttl = p->ttl - 1;
	if (v6) {
		old = outward ? p->tuple.destination : p->tuple.source;
		difference = bpf_csum_diff((__be32 *)&old, 16, (__be32 *)&to, 16, 0);
		sum6(skb, q.sum, difference, 0);
		bpf_skb_store_bytes(skb, q.outer, &to, 16, 0);
		bpf_skb_store_bytes(skb, ETH_HLEN + 7, &ttl, 1, BPF_F_RECOMPUTE_CSUM);
		// The quoted header has no checksum, so the ICMP checksum changes with it.
		old = outward ? t.destination : t.source;
		difference = bpf_csum_diff((__be32 *)&old, 16, (__be32 *)&to, 16, 0);
		bpf_l4_csum_replace(skb, q.sum, 0, difference, 0);
		bpf_skb_store_bytes(skb, q.address, &to, 16, 0);
	} else {
		to4 = ipv4_of(&to);
		from4 = ipv4_of(outward ? &p->tuple.destination : &p->tuple.source);
		bpf_l3_csum_replace(skb, ETH_HLEN + 10, from4, to4, 4);
		bpf_skb_store_bytes(skb, q.outer, &to4, 4, 0);
		bpf_l3_csum_replace(skb, ETH_HLEN + 10, swap16(p->ttl << 8), swap16(ttl << 8), 2);
		bpf_skb_store_bytes(skb, ETH_HLEN + 8, &ttl, 1, 0);
		// In the ICMP checksum, the changes of the quoted address and of the quoted header
		// checksum cancel out.
		from4 = ipv4_of(outward ? &t.destination : &t.source);
		bpf_l3_csum_replace(skb, q.inner + 10, from4, to4, 4);
		bpf_skb_store_bytes(skb, q.address, &to4, 4, 0);
	}
	bpf_l4_csum_replace(skb, q.sum, *(__u32 *)&ports, *(__u32 *)&new_ports, 4);
	bpf_skb_store_bytes(skb, q.ports, &new_ports, 4, 0);
	count(COUNT_ERRORS);
	return send(skb, &fib, p->tuple.direction);
}

static __always_inline int handle(struct __sk_buff *skb, __u8 direction)
{
	struct packet p = {.tuple.direction = direction};
	struct flow *flow;
	__u8 protocol;

	// Bridged packets and packets with a VLAN tag are not for this interface to route.
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return TCX_NEXT;
	if (skb->protocol == swap16(ETH_P_IP)) {
		if (!parse4(skb, &p))
			return TCX_NEXT;
	} else if (skb->protocol != swap16(ETH_P_IPV6) || !parse6(skb, &p)) {
		return TCX_NEXT;
	}
	protocol = p.tuple.protocol;
	if (protocol == (p.v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && p.fragment == WHOLE)
		return translate_error(skb, &p);
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return TCX_NEXT;
	if (p.fragment == LATER ? !recall(&p) : !parse_ports(skb, &p, p.offset & 127))
		return TCX_NEXT;

	flow = bpf_map_lookup_elem(&flows, &p.tuple);
	if (flow && direction == OUTWARD && is_syn(&p) && delete_if_ended(&p, flow))
		flow = 0;
	if (flow && direction == INWARD && is_syn_ack(&p) && delete_if_reopened(&p, flow))
		flow = 0;
	if (flow && flow->state & FLOW_LEFT) {
		flow->seen = seconds();
		return TCX_NEXT;
	}
	if (p.fragment == FIRST && is_overtaken(&p))
		return leave(skb, &p, flow);
	if (!flow) {
		int verdict = direction == OUTWARD ? begin(skb, &p) : TCX_NEXT;

		if (verdict != BEGUN)
			return verdict;
		flow = bpf_map_lookup_elem(&flows, &p.tuple);
		if (!flow || flow->state & FLOW_LEFT)
			return TCX_NEXT;
	}
	update_state(&p, flow);
	return forward(skb, &p, flow);
}

SEC("tcx/ingress")
int outward(struct __sk_buff *skb)
{
	return handle(skb, OUTWARD);
}

SEC("tcx/ingress")
int inward(struct __sk_buff *skb)
{
	return handle(skb, INWARD);
}

char _license[] SEC("license") = "GPL";
