package membership_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// Dead nodes are unresponsive while fewer than half are dead; between two halves, only nodes
// that are absent from the API server, too.
func TestSilentNodes(t *testing.T) {
	for _, tt := range []struct{ members, want string }{
		{"", ""},
		{"a", ""},
		{"d", ""}, // itself
		{"ad", ""},
		{"aad", "n3"},
		{"aal", ""},
		{"ald", "n3"},
		{"add", ""},
		{"daa", ""},
		{"dda", "n2"}, // one of three: to itself it is alive
		{"addaa", "n2 n3"},
		{"addda", ""},
		{"aadd", ""},
		{"aaddl", "n3 n4"},
		{"ax", "n2"},
		{"xa", ""}, // itself
		{"aadx", "n4"},
		{"aaxx", "n3 n4"},
		{"axx", ""},
		{"aaax", "n4"},
		{"lx", "n2"},
	} {
		var got []string
		unresponsive := plantest.Members(tt.members).Unresponsive("n1")
		for i := range 9 {
			if name := fmt.Sprintf("n%d", i); !unresponsive[name].IsZero() {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %s are unresponsive, want %s", tt.members, got, tt.want)
		}
	}
	if (*membership.Members)(nil).Unresponsive("n1") != nil {
		t.Error("a node is unresponsive without members")
	}
}
