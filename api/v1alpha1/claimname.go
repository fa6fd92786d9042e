package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"
)

// ClaimName returns the name of the AddressClaim of an address: its canonical text
// with '-' for ':', because names are DNS subdomains (RFC 1123). Those begin and
// end with a letter or digit, so ::1 is 0--1, and 2001:db8:: is 2001-db8--0.
// The address must have no zone.
func ClaimName(a netip.Addr) string {
	s := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasPrefix(s, "-") {
		s = "0" + s
	}
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

// ClaimAddress returns the address whose AddressClaim has the name. It fails for
// names that [ClaimName] does not return, so that each address has one name.
func ClaimAddress(name string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	switch {
	case err != nil || a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("claim name %q is not an address; it must be one such as "+
			"192.0.2.10 or 2001-db8--10", name)
	case ClaimName(a) != name:
		return netip.Addr{}, fmt.Errorf("claim name %q is not the canonical form of %s; it must be %s", name, a,
			ClaimName(a))
	}
	return a, nil
}
