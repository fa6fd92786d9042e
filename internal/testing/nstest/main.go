package nstest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// Main runs the tests of a package in parallel, each in its own namespace and process:
// three for each core, unless -parallel says otherwise. They mostly wait: for the absence
// of responses, and for timers of routers and the kernel.
func Main(m *testing.M) int {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		if err := p.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // cannot happen: the value is a number
		}
	}
	return m.Run()
}
