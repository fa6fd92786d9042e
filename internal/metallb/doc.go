// Package metallb reads the objects of MetalLB and says what they are in Fanfare: [Convert]
// returns Fanfare's objects and Notes about everything that has no counterpart, and [Compare]
// what each node announces by MetalLB's objects and by the converted ones. Both are pure.
// `fanfare migrate metallb` prints them.
//
//   - objects.go: MetalLB's objects, as its CRDs of version 0.16 define them; read.go reads them
//     from YAML, JSON and the API server's lists.
//   - package counterparts: each field of these objects and its counterpart.
//   - convert.go, with pool.go, peer.go, advertisement.go (one kind of object each),
//     selectors.go (lists of selectors, which Fanfare's objects do not have) and print.go.
//   - announced.go: what MetalLB's speakers announce; planned.go: what Fanfare's announce;
//     compare.go.
//
// Nothing here changes a cluster, or talks to one.
//
// MetalLB's rules are those of version 0.16.1, and comments name the functions of its source that
// have them: compare these when a newer version is supported. One principle holds everywhere: if
// an object cannot be converted exactly, Fanfare announces less with it and never more, and
// [Conversion.Notes] say so.
package metallb
