package cluster

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// An address that several nodes report is one Conflict, and was held if any node held it. What is no
// address is left out.
func TestConflictsOfSpeakers(t *testing.T) {
	report := func(node string, conflicts ...v1alpha1.SpeakerConflict) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{
			ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.SpeakerReport{Conflicts: conflicts},
		}
	}
	b := NewBuilder()
	b.Set(report("n2", v1alpha1.SpeakerConflict{Address: "192.0.2.2", MAC: "m2", Interface: "eth2", Held: true},
		v1alpha1.SpeakerConflict{Address: "none"}), "")
	b.Set(report("n1", v1alpha1.SpeakerConflict{Address: "192.0.2.2", MAC: "m1", Interface: "eth1"},
		v1alpha1.SpeakerConflict{Address: "192.0.2.1", MAC: "m1", Interface: "eth1"}), "")
	const want = "[{192.0.2.1 n1 m1 eth1 false} {192.0.2.2 n1 m1 eth1 true}]"
	s := b.Snapshot()
	if got := fmt.Sprint(s.Conflicts); got != want {
		t.Errorf("conflicts %s, want %s", got, want)
	}
	if c, ok := s.Conflict(s.Conflicts[1].Addr); !ok || c != s.Conflicts[1] {
		t.Errorf("found %v %t", c, ok)
	}
	b.Set(report("n1"), "")
	b.Set(report("n2"), "")
	if s := b.Snapshot(); len(s.Conflicts) != 0 {
		t.Errorf("conflicts %v remain", s.Conflicts)
	}
}
