// Package gossip tells which nodes' speakers are there, within a fraction of a second,
// and carries short messages between them.
//
// It is hashicorp/memberlist (SWIM with Lifeguard), with other timers and four things
// more:
//
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
// asked by three others as well, and over TCP; after 60 ms it is suspected, aloud. Two
// that suspect it (where there are three nodes or more) and 180 ms × max(1, log₁₀ n)
// in which it does not contradict make it dead; if only one suspects it, four times as
// long. A death that is taken back within 60 ms has never been. With n nodes it takes about 60 ms until somebody asks a dead one. Measured with
// timers alone, until all others have noticed, and until all know that it is back:
//
//	 n     dead: median   maximum   back: median   maximum
//	 3     0.31 s         0.43 s    0.10 s         0.24 s
//	10     0.34 s         0.43 s    0.27 s         0.36 s
//	50     0.53 s                   0.15 s
//
// A node that gets no processor for that long is taken for dead, and is back as soon
// as it runs; one that is slow asks more slowly itself (Lifeguard's awareness, up to
// eightfold) instead of suspecting everybody else.
package gossip
