package speaker

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// n1 is preferred at first. Of the others, n3 has the higher hash.
func TestL2Failover(t *testing.T) {
	for name, scenario := range map[string]func(f *fleet){
		"a planned move": func(f *fleet) {
			f.prefer("n2")
			f.calm("the controller prefers n2", 10*time.Second)
			f.owner("after that", "n2")
			if f.noOwner > 2*fleetTick {
				f.t.Errorf("no node answered for %s", f.noOwner)
			}
			if !f.node("n1").kernel[f.vip] {
				f.t.Error("n1 no longer forwards")
			}
		},
		"a planned move to a node that sees it late": func(f *fleet) {
			f.node("n2").stale = 500 * time.Millisecond
			f.prefer("n2")
			f.calm("the controller prefers n2", 5*time.Second)
			f.owner("after that", "n2")
			if f.noOwner > 2*fleetTick {
				f.t.Errorf("no node answered for %s: %s", f.noOwner, strings.Join(f.history, ", "))
			}
		},
		"a planned move without messages": func(f *fleet) {
			f.dropMessages = true
			f.prefer("n2")
			f.calm("the controller prefers n2", 10*time.Second)
			f.owner("after that", "n2")
			if f.noOwner > releaseTimeout+2*fleetTick {
				f.t.Errorf("no node answered for %s", f.noOwner)
			}
		},
		"a death": func(f *fleet) {
			f.reset()
			f.node("n1").dead = true
			f.run(5 * time.Second)
			f.within("n1 is dead", fleetDetection+5*fleetTick, 0)
			f.owner("after that", "n3")
			f.node("n1").kernel = map[netip.Addr]bool{}
			f.node("n1").start()
			f.calm("n1 has booted", 5*time.Second)
			f.owner("after that", "n1")
		},
		"a suspended speaker": func(f *fleet) {
			n1 := f.node("n1")
			n1.suspended = true
			f.calm("n1 is suspended, and its kernel is not", 5*time.Second)
			if !f.node("n3").answers[f.vip] {
				f.t.Error("n3 did not take over")
			}
			n1.suspended, n1.resumed = false, true
			f.reset()
			f.run(5 * time.Second)
			// n1 does not know that it was suspended, and n3 sees that it is alive.
			f.within("n1 has resumed", 0, fleetDetection)
			f.owner("after that", "n1")
			f.answered("n1 has resumed")
		},
		"a suspended speaker that resumes when another is preferred": func(f *fleet) {
			n1 := f.node("n1")
			n1.suspended = true
			f.run(2 * time.Second)
			f.prefer("n2")
			f.calm("n2 is preferred", 5*time.Second)
			n1.suspended, n1.resumed = false, true
			f.reset()
			f.run(5 * time.Second)
			f.within("n1 has resumed", 0, 2*fleetTick)
			f.owner("after that", "n2")
		},
		"a returning node that receives states late": func(f *fleet) {
			f.reboot("n1").slow = time.Second
			f.calm("n1 has booted, and is busy", 8*time.Second)
			f.owner("after that", "n1")
		},
		"a returning node that dies again": func(f *fleet) {
			n1 := f.reboot("n1")
			f.calm("n1 has booted", time.Second)
			n1.dead = true
			f.calm("and is dead again", 5*time.Second)
			f.owner("after that", "n3")
		},
		"a returning node, and the other nodes die": func(f *fleet) {
			f.reboot("n1")
			f.run(time.Second)
			f.node("n2").dead, f.node("n3").dead = true, true
			f.reset()
			f.run(time.Second)
			f.within("they are dead", fleetDetection+5*fleetTick, 0)
			f.owner("after that", "n1")
		},
		"a restart": func(f *fleet) {
			f.reset()
			n1 := f.node("n1")
			n1.stop()
			f.run(5 * time.Second)
			f.within("n1's speaker has stopped", 0, 0)
			f.owner("after that", "n3")
			if f.noOwner > 2*fleetTick {
				f.t.Errorf("no node answered for %s", f.noOwner)
			}
			n1.start()
			f.calm("n1's speaker is back", 5*time.Second)
			f.owner("after that", "n1")
		},
		"a crash of the speaker alone": func(f *fleet) {
			n1 := f.node("n1")
			n1.gone = true
			f.calm("n1's speaker has crashed, and its kernel goes on", 5*time.Second)
			f.owner("after that", "n3")
			n1.start()
			f.calm("n1's speaker is back", 5*time.Second)
			f.owner("after that", "n1")
		},
		"the API server is down": func(f *fleet) {
			f.apiDown = true
			f.calm("the API server is down", time.Minute)
			f.owner("after that", "n1")
			f.node("n1").dead = true
			f.reset()
			f.run(5 * time.Second)
			f.within("n1 is dead as well", fleetDetection+5*fleetTick, 0)
			f.owner("after that", "n3")
		},
		"a partition, and it ends": func(f *fleet) {
			f.cut["n1 n2"], f.cut["n1 n3"], f.apiDown = true, true, true
			f.calm2("n1 is cut off from the others, not from the neighbour", 5*time.Second)
			if !f.node("n1").answers[f.vip] || !f.node("n3").answers[f.vip] {
				f.t.Error("each side must assume that it is alone")
			}
			clear(f.cut)
			f.reset()
			f.run(5 * time.Second)
			f.within("the partition has ended", 0, fleetDetection)
			f.owner("after that", "n1")
			f.answered("the partition has ended")
		},
		"the port is blocked, and Leases show that nodes are alive": func(f *fleet) {
			f.cut["n1 n2"], f.cut["n1 n3"], f.byLease = true, true, time.Second
			f.calm2("n1 is not reachable", 5*time.Second)
			if f.twoOwners == 0 {
				f.t.Error("n3 did not take over")
			}
			f.owner("by Leases", "n1")
			f.answered("n1 is not reachable")
			clear(f.cut)
			f.calm("the port is open", 5*time.Second)
			f.owner("after that", "n1")
			f.answered("the port is open")
		},
		"two preferences in quick succession": func(f *fleet) {
			f.reset()
			for range 10 {
				f.prefer("n2")
				f.run(3 * fleetTick)
				f.prefer("n3")
				f.run(2 * fleetTick)
			}
			f.run(5 * time.Second)
			f.within("after that", 0, 0)
			f.owner("after that", "n3")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				f.run(5 * time.Second)
				f.owner("at first", "n1")
				if f.noOwner > fleetProbe+5*fleetTick {
					t.Errorf("at first no node answered for %s", f.noOwner)
				}
				if f.twoOwners > 0 {
					t.Errorf("at first two nodes answered for %s", f.twoOwners)
				}
				f.history = nil
				scenario(f)
			})
		})
	}
}
