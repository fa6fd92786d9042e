// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// Programs that take packets where Cilium's do, with Cilium's names of programs and maps, for IPv4
// without policies. cilium_test.go loads and attaches them.
//
//   cil_from_netdev     from the network: passes all to the stack, or calls tail_nodeport_*
//   cil_from_host       from the stack by cilium_host: to pods of the node, or into the tunnel
//   cil_from_overlay    from the tunnel: to pods of the node, past the stack
//   cil_from_container  from a pod: into the tunnel; replies of Services get the address back
//   tail_nodeport_nat_ingress_ipv4
//                       to pods of the node, past the stack, and translates the addresses of
//                       Services; only with kube-proxy replacement

#include "../../../proxy/fastpath/kernel.h"

#define BPF_MAP_TYPE_PROG_ARRAY 3
#define TC_ACT_OK 0
#define TUNNEL_ID 2 // Cilium sends the identity of the source
#define CILIUM_CALL_NODEPORT_NAT_INGRESS 0

static long (*bpf_tail_call)(void *ctx, void *calls, __u32 index) = (void *)12;
static long (*bpf_skb_set_tunnel_key)(struct __sk_buff *skb, const void *key, __u32 size, __u64 flags) = (void *)21;
static long (*bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)32;

struct iphdr {
	__u8 version_length, tos;
	__be16 length, id, offset;
	__u8 ttl, protocol;
	__u16 checksum;
	__be32 saddr, daddr;
};

struct bpf_tunnel_key {
	__u32 tunnel_id;
	__u32 remote_ipv4; // in host byte order
	__u32 remote_ipv6[3];
	__u8 tos, ttl;
	__u16 flags;
	__u32 label;
	__u32 local[4];
};

struct endpoint {
	__u32 ifindex;
	__u8 mac[6], node_mac[6];
};

// A service is an address and port before or after translation.
struct service {
	__be32 addr;
	__be16 port;
	__u8 protocol, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __be32); // of a pod of the node
	__type(value, struct endpoint);
	__uint(max_entries, 16);
} cilium_lxc SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __be32); // the network of another node's pods, of 24 bits
	__type(value, __u32); // the node, in host byte order
	__uint(max_entries, 16);
} cilium_tunnel_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct service);
	__type(value, struct service);
	__uint(max_entries, 16);
} cilium_lb4_services_v2 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct service);
	__type(value, struct service);
	__uint(max_entries, 16);
} cilium_lb4_reverse_nat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
	__uint(max_entries, 1);
} cilium_calls SEC(".maps");

// The interfaces of the network and of the tunnel; 0: none.
volatile const __u32 netdev_ifindex, tunnel_ifindex;

static __always_inline int load(struct __sk_buff *skb, struct iphdr *ip)
{
	return skb->protocol == swap16(ETH_P_IP) ? bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(*ip)) : -1;
}

// deliver sends a packet to a pod of the node.
static __always_inline int deliver(struct __sk_buff *skb, __be32 daddr)
{
	struct endpoint *pod = bpf_map_lookup_elem(&cilium_lxc, &daddr);

	if (!pod)
		return TC_ACT_OK;
	if (bpf_skb_store_bytes(skb, 0, pod->mac, 6, 0) || bpf_skb_store_bytes(skb, 6, pod->node_mac, 6, 0))
		return TCX_DROP;
	return bpf_redirect(pod->ifindex, 0);
}

// encapsulate sends a packet to the node of its destination.
static __always_inline int encapsulate(struct __sk_buff *skb, __be32 daddr)
{
	__be32 network = daddr & swap32(0xffffff00);
	__u32 *node = bpf_map_lookup_elem(&cilium_tunnel_map, &network);
	struct bpf_tunnel_key key = {.tunnel_id = TUNNEL_ID, .ttl = 64};

	if (!tunnel_ifindex || !node)
		return TC_ACT_OK;
	key.remote_ipv4 = *node;
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), 0))
		return TCX_DROP;
	return bpf_redirect(tunnel_ifindex, 0);
}

// translate replaces an address and a port: the destination, or the source.
static __always_inline int translate(struct __sk_buff *skb, const struct service *from, const struct service *to, int source)
{
	__u32 l4 = ETH_HLEN + sizeof(struct iphdr), addr = ETH_HLEN + (source ? 12 : 16), port = l4 + (source ? 0 : 2);
	__u32 checksum = l4 + (from->protocol == IPPROTO_TCP ? 16 : 6);
	__u64 flags = from->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	return bpf_l4_csum_replace(skb, checksum, from->addr, to->addr, flags | BPF_F_PSEUDO_HDR | 4) ||
	       bpf_l4_csum_replace(skb, checksum, from->port, to->port, flags | 2) ||
	       bpf_l3_csum_replace(skb, ETH_HLEN + 10, from->addr, to->addr, 4) ||
	       bpf_skb_store_bytes(skb, addr, &to->addr, 4, 0) ||
	       bpf_skb_store_bytes(skb, port, &to->port, 2, 0);
}

// find returns the other side of a packet's translation; NULL if there is none.
static __always_inline struct service *find(struct __sk_buff *skb, const struct iphdr *ip, void *map, struct service *from, int source)
{
	from->addr = source ? ip->saddr : ip->daddr;
	from->protocol = ip->protocol;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(*ip) + (source ? 0 : 2), &from->port, 2))
		return 0;
	return bpf_map_lookup_elem(map, from);
}

SEC("tc")
int tail_nodeport_nat_ingress_ipv4(struct __sk_buff *skb)
{
	struct service from = {}, *to;
	struct iphdr ip;

	if (load(skb, &ip))
		return TC_ACT_OK;
	to = find(skb, &ip, &cilium_lb4_services_v2, &from, 0);
	if (!to)
		return deliver(skb, ip.daddr);
	return translate(skb, &from, to, 0) ? TCX_DROP : deliver(skb, to->addr);
}

SEC("tc")
int cil_from_netdev(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &cilium_calls, CILIUM_CALL_NODEPORT_NAT_INGRESS); // does not return if it is loaded
	return TC_ACT_OK;
}

SEC("tc")
int cil_from_host(struct __sk_buff *skb)
{
	struct iphdr ip;
	int verdict;

	if (load(skb, &ip))
		return TC_ACT_OK;
	verdict = deliver(skb, ip.daddr);
	return verdict == TC_ACT_OK ? encapsulate(skb, ip.daddr) : verdict;
}

SEC("tc")
int cil_from_overlay(struct __sk_buff *skb)
{
	struct iphdr ip;

	bpf_skb_change_type(skb, PACKET_HOST); // the inner Ethernet header is another node's
	return load(skb, &ip) ? TC_ACT_OK : deliver(skb, ip.daddr);
}

SEC("tc")
int cil_from_container(struct __sk_buff *skb)
{
	struct service from = {}, *to;
	struct iphdr ip;

	if (load(skb, &ip))
		return TC_ACT_OK;
	to = find(skb, &ip, &cilium_lb4_reverse_nat, &from, 1);
	if (to)
		return translate(skb, &from, to, 1) ? TCX_DROP : bpf_redirect_neigh(netdev_ifindex, 0, 0, 0);
	return encapsulate(skb, ip.daddr);
}

char __license[] SEC("license") = "GPL";
