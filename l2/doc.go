// Package l2 announces addresses on the links of one node, as a [State] says: it answers
// ARP (RFC 826) for IPv4 and Neighbor Discovery (RFC 4861) for IPv6. A network without BGP
// routers learns from it which node holds an address.
//
// The package knows addresses, interfaces and hardware addresses. It knows no Services, and
// the caller of [Announcer.Set] decides which node holds an address. The addresses are
// never assigned to an interface: the kernel neither answers for them nor accepts packets
// to them as its own.
//
// # Goroutines
//
// The worker (worker.go) runs on a thread in the node's network namespace. It lists the
// interfaces when netlink reports a change (link.go), applies the State (reconcile.go), and
// opens a packet socket (socket.go) for each interface and protocol that need one (plan.go):
// with a filter (filter.go), and the multicast groups of IPv6 solicitations (group.go).
// A State that differs from the last one by a few addresses costs a comparison of the lists, and
// the work for these addresses.
//
// A second goroutine sends unsolicited frames when their timers are due (schedule.go): gratuitous ARP
// and unsolicited neighbour advertisements (gratuitous.go), their repetitions, and probes (probe.go).
// Each socket has a goroutine that reads packets (packet.go, arp.go, ndp.go), decides (reply.go) and
// answers, as often as ratelimit.go allows. state.go has the contract, and replypath.go whether
// answers return by the interface of their requests.
//
// All of them lead an address through its phases (phases.go) under one lock, and send while they hold it, without
// waiting for an interface. After Set has returned, no frame is sent for an address that
// was removed.
//
// # Phases of an address
//
// An address is held at once, or after probes (probe.go) if the State says that no node held it before (RFC 5227 §2.1,
// RFC 4862 §5.4). Requests are answered once the first probe has found no host (early.go, RFC 4429); the address is
// announced when all have. Conflicts are detected from received ARP and NDP packets (conflict.go, RFC 5227 §2.4). The
// address is defended once. If the other host persists, the address is given up and probed again later.
//
// # Neighbor Discovery without the kernel
//
// Solicitations are read from a packet socket. An IPv6 socket does not receive the unicast
// solicitations by which a neighbour checks reachability (RFC 4861 §7.3.1): the address is
// not local, so the kernel would forward them. Multicast solicitations need the interface
// in the solicited-node group; the kernel reports the membership to switches by MLD.
//
// Messages with IPv6 extension headers are ignored; hosts do not send them.
//
// # More files
//
// l2.go has the Announcer, stale.go the age of received frames, interface.go the links of a node,
// problems.go the node's settings that break layer 2; status.go and metrics.go report.
package l2
