// Package nstest runs tests in their own network namespaces, so that they can use the real
// kernel (addresses, routes, nftables, conntrack) without root, and without effect on the
// machine.
//
// [Run] executes a test again in a process with a new namespace: everything in that
// process, including goroutines and children, is on "the node". [New] creates further
// namespaces (clients, routers, pods), [Link] connects two of them by a veth pair, and
// [NS.Do] runs code inside one.
//
// A socket belongs to the namespace of the thread that opened it: open it in Do, and use it
// in any goroutine.
package nstest
