package lab

import "testing"

// A cell is wrapped in its own column and keeps its line breaks. No line ends in spaces.
func TestRowWrapsCells(t *testing.T) {
	const want = "" +
		"1 A Service is created    a Service (Local) and its         address 192.0.2.1 on all three nodes            " +
		"an address, rules in the\n" +
		"ok, 0.25 s                EndpointSlice (pod p11 on n1)     after 3.0 ms: rules in the kernel of n1         " +
		"kernel, a route, then an\n" +
		"                          were created                                                          " +
		"            answer\n"
	got := row("1 A Service is created\nok, 0.25 s",
		"a Service (Local) and its EndpointSlice (pod p11 on n1) were created",
		"address 192.0.2.1 on all three nodes\nafter 3.0 ms: rules in the kernel of n1",
		"an address, rules in the kernel, a route, then an answer")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := row("", "", "", ""); got != "\n" {
		t.Errorf("empty cells: %q", got)
	}
}
