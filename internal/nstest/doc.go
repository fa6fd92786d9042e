// Package nstest gives tests network namespaces of their own, so that they can
// use the real kernel (addresses, routes, nftables, conntrack) without root and
// without touching the machine.
//
// [Run] executes a test again in a process whose namespace is new: everything
// in that process, goroutines and children included, is on "the node". [New]
// makes further namespaces (clients, routers, pods), [Link] joins two of them
// with a veth pair, and [NS.Do] runs code inside one.
//
// A socket belongs for ever to the namespace of the thread that opened it. Do
// opens it there; afterwards any goroutine may use it.
package nstest
