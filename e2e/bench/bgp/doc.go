// Package bgp measures how fast many routes reach several routers, and what announcing them
// costs, for Fanfare's speaker and for FRR.
//
// The routers are part of this program: listeners that read as much of BGP as it takes to
// record which routes arrive, and when. So the same receivers measure both announcers.
//
// load.go is a benchmark of its own with the same parts: one speaker with up to 50,000 Services.
package bgp
