package bgp

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// TestMain lets more tests wait side by side than there are cores: a router in a
// namespace waits for its timers, and its test for the router.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		if err := p.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // a number is one
		}
	}
	os.Exit(m.Run())
}

// inNamespace runs f in a network namespace and a process of its own, beside others.
// What BFD's detection time of some 100 ms decides does not go this way: another test
// may hold the processor for longer.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	nstest.Run(t, f)
}
