package suspend

import (
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	var d Detector
	begin := time.Now()
	for _, tt := range []struct{ at, want time.Duration }{
		{0, 0}, // the first reading
		{500 * time.Millisecond, 0},
		{2500 * time.Millisecond, 0}, // the threshold itself
		{4501 * time.Millisecond, 2001 * time.Millisecond},
		{5 * time.Second, 0},
		{time.Hour, time.Hour - 5*time.Second},
	} {
		if got := d.Pause(begin.Add(tt.at), 2*time.Second); got != tt.want {
			t.Errorf("after %s: a pause of %s, want %s", tt.at, got, tt.want)
		}
	}
}

// The clock counts while the process does not run.
func TestBootTime(t *testing.T) {
	before := bootTime()
	if !bootTime().After(before) || before.Year() > 2000 {
		t.Errorf("the time since boot is %s", before)
	}
}
