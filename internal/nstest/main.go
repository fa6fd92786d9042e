package nstest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// Main runs the tests of a package whose tests are parallel, each in a namespace and a
// process of its own: three for each core, unless -parallel says otherwise. They wait more
// than they work, for answers that shall not come, and for timers of routers and of the
// kernel.
func Main(m *testing.M) int {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		if err := p.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // a number is one
		}
	}
	return m.Run()
}
