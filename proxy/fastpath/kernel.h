// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// The part of the kernel's BPF API that flow.bpf.c uses, with the kernel's names. No system
// header is included, so that every machine compiles the same object: the types in system
// headers differ.

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) __typeof__(value) *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define swap16(x) __builtin_bswap16(x)
#define swap32(x) __builtin_bswap32(x)
#else
#define swap16(x) (x)
#define swap32(x) (x)
#endif

// bpf.h
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
};
#define BPF_F_NO_PREALLOC 1
#define LIBBPF_PIN_BY_NAME 1

#define BPF_ANY 0
#define BPF_NOEXIST 1

#define BPF_F_RECOMPUTE_CSUM 1
#define BPF_F_PSEUDO_HDR 16
#define BPF_F_MARK_MANGLED_0 32
#define BPF_F_IPV6 128 // Linux 6.16, and stable ones

#define BPF_FIB_LOOKUP_SKIP_NEIGH 4
#define BPF_FIB_LKUP_RET_SUCCESS 0
#define BPF_FIB_LKUP_RET_NO_NEIGH 7
#define BPF_FIB_LKUP_RET_FRAG_NEEDED 8

#define BPF_ADJ_ROOM_MAC 1

#define TCX_NEXT -1
#define TCX_DROP 2

#define EEXIST 17
#define EINVAL 22
#define ENOSPC 28

// socket.h, if_packet.h, if_ether.h, in.h
#define AF_INET 2
#define AF_INET6 10
#define PACKET_HOST 0
#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct bpf_fib_lookup {
	__u8 family;
	__u8 l4_protocol;
	__be16 sport;
	__be16 dport;
	__u16 tot_len;
	__u32 ifindex;
	union {
		__u8 tos;
		__be32 flowinfo;
	};
	__be32 src[4]; // IPv4: the first
	__be32 dst[4];
	__u32 tbid;
	__u8 smac[6];
	__u8 dmac[6];
};

struct bpf_redir_neigh {
	__u32 nh_family;
	__be32 nh[4]; // IPv4: the first
};

// Helpers, by their numbers.
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 size) = (void *)10;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static long (*bpf_csum_diff)(const __be32 *from, __u32 from_size, const __be32 *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*bpf_csum_update)(struct __sk_buff *skb, __u32 csum) = (void *)40;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, int difference, __u32 mode, __u64 flags) = (void *)50;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags) = (void *)69;
static long (*bpf_redirect_neigh)(__u32 ifindex, const struct bpf_redir_neigh *params, int size, __u64 flags) = (void *)152;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;
