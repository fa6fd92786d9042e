package watch

import (
	"testing"
	"time"
)

func TestMomentSince(t *testing.T) {
	for _, tt := range []struct {
		what        string
		now, before Moment
		want        time.Duration
		known       bool
	}{
		{"an hour", Moment{"a", 2 * time.Hour}, Moment{"a", time.Hour}, time.Hour, true},
		{"the same moment", Moment{"a", time.Hour}, Moment{"a", time.Hour}, 0, true},
		{"rebooted", Moment{"b", 2 * time.Hour}, Moment{"a", time.Hour}, 0, false},
		{"rebooted, and up for a shorter time", Moment{"b", time.Minute}, Moment{"a", time.Hour}, 0, false},
		{"from the future", Moment{"a", time.Hour}, Moment{"a", 2 * time.Hour}, 0, false},
		{"never", Moment{"a", time.Hour}, Moment{}, 0, false},
		{"no clock", Moment{}, Moment{}, 0, false},
	} {
		got, known := tt.now.Since(tt.before)
		if known != tt.known || known && got != tt.want {
			t.Errorf("%s: %s, %t", tt.what, got, known)
		}
	}
}

func TestNow(t *testing.T) {
	before, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	after, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	if age, known := after.Since(before); !known || age > time.Minute {
		t.Errorf("from %v to %v: %s, %t", before, after, age, known)
	}
}
