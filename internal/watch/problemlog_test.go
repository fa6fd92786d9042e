package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A tenant's mistakes are logged up to a bound, and hide neither another tenant's nor an
// administrator's.
func TestProblemLogBounds(t *testing.T) {
	var out bytes.Buffer
	l := newProblemLog(slog.New(slog.NewTextHandler(&out, nil)), "problem with an object")
	lines := func(text string) int { return strings.Count(out.String(), text) }
	now := time.Unix(1000, 0)
	var all []cluster.Problem
	for i := range 2000 {
		all = append(all, cluster.Problem{Object: fmt.Sprintf("Service evil/s%d", i), Message: "wrong"})
	}
	for i := range 2 * maxProblemLines {
		all = append(all, cluster.Problem{Object: fmt.Sprintf("AddressPool p%d", i), Message: "wrong"})
	}
	l.write(append(all, cluster.Problem{Object: "Service shop/web", Message: "wrong"}), now)
	if n := lines("Service evil/"); n != maxProblemLines {
		t.Errorf("%d lines of one namespace, want %d", n, maxProblemLines)
	}
	if lines("namespace=evil") != 1 || lines("AddressPool p") != 2*maxProblemLines || lines("Service shop/web") != 1 {
		t.Errorf("log:\n%s", &out)
	}
	l.write(all[:1], now.Add(problemInterval))
	if n := lines("Service evil/"); n != maxProblemLines+1 {
		t.Errorf("%d lines of one namespace after an interval, want one more than %d", n, maxProblemLines)
	}
}
