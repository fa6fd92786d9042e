// Package bgp measures how fast many routes reach several routers, and what
// announcing them costs: Fanfare's speaker, and beside it FRR announcing the same
// routes.
//
// The routers are part of this program: listeners that read as much of BGP as it
// takes to record which routes arrive, and when. So both announcers are measured by
// the same receivers.
package bgp
