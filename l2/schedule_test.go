package l2

import (
	"testing"
	"time"
)

// A process that is suspended while repetitions of an announcement are due sends them later, when
// the caller of Set knows which node answers now. What the caller then announces is sent at once.
func TestSuspendedProcessAnnouncesLater(t *testing.T) {
	const before = "0s announces it\n100ms announces it\n500ms announces it\n1.5s announces it\n"
	for _, tt := range []struct {
		name                 string
		suspended, continues time.Duration
		announces            bool // at the end of the suspension
		want                 string
	}{
		{"not at all", 2 * time.Second, 2 * time.Second, false, "3.5s announces it\n7.5s announces it\n"},
		{"shorter than a takeover takes", 2 * time.Second, 3 * time.Second, false, "3.5s announces it\n7.5s announces it\n"},
		{"until a repetition is due", 2 * time.Second, 3600 * time.Millisecond, false, "6.6s announces it\n10.6s announces it\n"},
		{"until shortly before", 4 * time.Second, 7 * time.Second, false, "3.5s announces it\n10s announces it\n"},
		{"for long", 2 * time.Second, 12 * time.Second, false, "15s announces it\n19s announces it\n"},
		{"for long, and has the address still", 2 * time.Second, 12 * time.Second, true, "12s announces it\n15s announces it\n15.4s announces it\n16.4s announces it\n18.4s announces it\n22.4s announces it\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDryRun(t, "2001:db8::1")
			d.x.needsProbe = false
			d.assign()
			d.at(tt.suspended)
			d.now = d.start.Add(tt.continues)
			if tt.announces {
				d.a.startAnnouncing(d.x, d.x.sockets(), d.now)
			}
			d.at(tt.continues + 20*time.Second)
			d.expect(Held, before+tt.want)
		})
	}
}
