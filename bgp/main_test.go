package bgp

import (
	"os"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// inNamespace runs f in a network namespace and a process of its own, beside others.
// What BFD's detection time of some 100 ms decides does not go this way: another test
// may hold the processor for longer.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	nstest.Run(t, f)
}
