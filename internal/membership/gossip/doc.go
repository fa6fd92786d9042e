// Package gossip tells which nodes' speakers are there, within a fraction of a second,
// and carries short messages between them.
//
// It is hashicorp/memberlist (SWIM with Lifeguard), with other timers and five things
// more:
//
//   - Nobody is dead on hearsay. Whoever is told so asks the accused itself, for 80 ms in
//     which it has itself been running, by packets and by a connection. A process that is
//     silent while its kernel still accepts connections, since it is frozen, hung or gets
//     no processor, is borne for a second.
//   - Only nodes of the cluster are members, at their own addresses. Who has no key is
//     a stranger, and is counted and named.
//   - A node that was a member is told that it is missed, at once and regularly, by one
//     or another twenty times a second, until it is back or no node any more. Memberlist
//     by itself waits for the next exchange with somebody who remembers it, half a
//     minute or never.
//   - A process that was frozen notices it when it thaws, and asks the others what they
//     think of it. It contradicts, and is back.
//   - Who says farewell has not died. A speaker that restarts leaves pods and rules
//     behind that work as before.
//
// # Keys
//
// Whatever is sent is encrypted and authenticated by AES-256-GCM. Keys come from a
// file, one a line, of any text of 16 bytes or more; what is used is its SHA-256.
// All lines are taken from others. What is sent is under the first line, but for the
// first five minutes after it appeared: until then under the one used before, so that
// those whose file changes later understand it. A line that goes is taken for ten
// minutes more. So a key is changed by writing a new line before the old one, and
// removing the old one ten minutes later.
//
// # Timers
//
// Each node asks one other each 60 ms, all in turn. Who does not answer within 20 ms is
// asked by three others as well, and over TCP; after 60 ms it is suspected, aloud. When it
// has not contradicted for 120 ms × max(1, log₁₀ n) it is accused, and each node that
// hears it asks four times, each 20 ms. With n nodes it takes about 60 ms until somebody
// asks a dead one. Measured with timers alone (20 deaths, and 10 of 10 nodes), until all
// others have noticed, and until all know that it is back:
//
//	  n    dead: median   maximum   back: median   maximum
//	  3    0.31 s         0.42 s    0.08 s         0.14 s
//	 10    0.30 s         0.36 s    0.16 s         0.22 s
//	 50    0.41 s         0.51 s    0.14 s         0.20 s
//	100    0.45 s         0.70 s    0.17 s         0.55 s
//
// A node that is slow asks more slowly itself (Lifeguard's awareness, up to eightfold)
// instead of suspecting everybody else.
package gossip
