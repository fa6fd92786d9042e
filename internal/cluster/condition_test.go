package cluster

import (
	"fmt"
	"testing"
)

// The values of annotations follow in the same message: they must not say that a Service has an address.
func TestAddressesOfCondition(t *testing.T) {
	const forged = `has 192.0.2.1 of pool lan; has 2001:db8::1 of pool lan; ` +
		`metadata.annotations[fanfare.io/scheduler] "x; has 192.0.2.9; y": must be random`
	got := fmt.Sprint(AddressCondition{Message: forged}.Addrs())
	if want := "[192.0.2.1 2001:db8::1]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
