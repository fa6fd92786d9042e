// Package l2 answers for addresses on the links of one node, as a [State] says: ARP
// (RFC 826) for IPv4, Neighbor Discovery (RFC 4861) for IPv6. It is how a network
// without a router that speaks BGP learns which node has an address.
//
// It knows addresses, interfaces and hardware addresses, and nothing of Services, nor of
// which node should have an address: whoever calls [Announcer.Set] has decided that.
// The addresses are on no interface of the node, and stay on none: the kernel neither
// answers for them nor takes what is sent to them for its own.
//
// # Who does what
//
// Two goroutines do what nobody waits for. One, the keeper (keeper.go), is on a thread of
// the node's network namespace: it lists the interfaces whenever netlink says that some have
// changed (link.go), goes from what is to what shall be (reconcile.go), and gives each that is
// needed a port (port.go) for each protocol: a packet socket with a filter (filter.go), and the
// groups in which IPv6 is asked (group.go).
// The other, the herald (herald.go), sends what nobody asked for, as the schedule (schedule.go)
// says: announcements, their repetitions, and probes. Each port has a goroutine besides, that
// reads, decides (reply.go) and answers.
//
// All three change what becomes of an address under one lock, and send while they hold it,
// without ever waiting for an interface. So when Set has returned, nothing more is said
// about an address that it gave up.
//
// # An address
//
// It is held, and answered for, at once, or after a probe if the State says that nobody held it
// until now (RFC 5227 §2.1, RFC 4862 §5.4). Who has it nevertheless is noticed by what he
// says (conflict.go, RFC 5227 §2.4): he is told once that it is taken, and if he goes on, it
// is left to him, and probed again later.
//
// # Neighbor Discovery without the kernel
//
// Solicitations are read from a packet socket, since no socket of IPv6 gets those that a
// neighbour sends to the address itself, to see whether it is still there (RFC 4861 §7.3.1):
// the kernel, which knows of no such address here, would forward them. For multicast ones
// the interface has to be in the group; the kernel tells switches of that by MLD.
//
// Messages with IPv6 extension headers are not read: nobody sends any.
package l2
