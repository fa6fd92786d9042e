package state

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// maxIfname is the length of the longest name of an interface (IFNAMSIZ).
const maxIfname = 15

// Validate returns all violations of the rules in the comments of the types, and of nftables'
// [Limits], with the address, the field and what would be right.
func (s State) Validate() error {
	return errors.Join(ValidateShared(s), DefaultLimits(ModeNFTables).Refuse(DiffVIPs(VIPs{}, s.VIPs)).Err())
}

// ValidateShared checks the parts that belong to no VIP.
func ValidateShared(s State) error {
	errs := []error{
		validatePrefixes("owned", s.Owned),
		validatePrefixes("clients", s.Clients.CIDRs),
		s.SNAT.validate(),
		validateRedirects(s),
	}
	for field, name := range map[string]string{
		"interface prefix": s.Clients.InterfacePrefix,
		"bridge":           s.Clients.Bridge,
	} {
		if len(name) > maxIfname {
			errs = append(errs, fmt.Errorf("clients: %s %q has more than %d bytes", field, name, maxIfname))
		}
	}
	return errors.Join(errs...)
}

func validatePrefixes(field string, all []netip.Prefix) error {
	for i, p := range all {
		switch {
		case !p.IsValid() || p.Addr().Is4In6():
			return fmt.Errorf("%s: %s is no IPv4 or IPv6 prefix", field, p)
		case p.Masked() != p:
			return fmt.Errorf("%s: %s has bits set behind its length; want %s", field, p, p.Masked())
		case i > 0 && all[i-1].Overlaps(p):
			return fmt.Errorf("%s: %s overlaps %s", field, p, all[i-1])
		case i > 0 && all[i-1].Addr().Compare(p.Addr()) >= 0:
			return fmt.Errorf("%s: %s comes after %s; want them sorted by address", field, p, all[i-1])
		}
	}
	return nil
}

// isUnicast reports whether a is a possible destination on a network, of one node, and in the form
// that the kernel compares.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback()
}

func (v *VIP) validate() error {
	if a := v.Addr; !isUnicast(a) {
		return fmt.Errorf("vip %s: no address to forward; want a unicast IPv4 or IPv6 address without a zone", a)
	}
	var errs []error
	for i := range v.Frontends {
		f := &v.Frontends[i]
		if i > 0 && CompareFrontends(&v.Frontends[i-1], f) >= 0 {
			errs = append(errs, fmt.Errorf("%s: comes after %s; frontends must be sorted by protocol "+
				"and port, no two alike", f.Label(v), v.Frontends[i-1].Label(v)))
		}
		errs = append(errs, f.validate(v))
	}
	return errors.Join(errs...)
}

func CompareFrontends(a, b *Frontend) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// Label names a frontend in errors: "192.0.2.1 tcp/80".
func (f *Frontend) Label(v *VIP) string {
	return fmt.Sprintf("%s %s/%d", v.Addr, f.Protocol, f.Port)
}

func (f *Frontend) validate(v *VIP) error {
	var errs []error
	switch f.Protocol {
	case TCP, UDP, SCTP:
	default:
		errs = append(errs, fmt.Errorf("%s: protocol %d; want TCP, UDP or SCTP", f.Label(v), f.Protocol))
	}
	if f.Port == 0 {
		errs = append(errs, fmt.Errorf("%s: port 0; want 1-65535", f.Label(v)))
	}
	for i, b := range f.Draining {
		switch {
		case b.Port() == 0 || b.Addr().Zone() != "" || b.Addr().Is4In6() || !b.IsValid() ||
			Family(b.Addr()) != Family(v.Addr):
			errs = append(errs, fmt.Errorf("%s draining: %s: want an address of the VIP's family "+
				"without a zone, and a port", f.Label(v), b))
		case i > 0 && f.Draining[i-1].Compare(b) >= 0:
			errs = append(errs, fmt.Errorf("%s draining: %s comes after %s; want them sorted, no two alike", f.Label(v),
				b, f.Draining[i-1]))
		}
	}
	errs = append(errs, validatePrefixes(f.Label(v)+" sources", f.Sources))
	if a := f.Affinity; a != 0 && (a < time.Second || a > MaxAffinity || a%time.Second != 0) {
		errs = append(errs, fmt.Errorf("%s: affinity is %s; want whole seconds, 1s to 24h, or 0 for none", f.Label(v),
			a))
	}
	if f.Scheduler > Maglev {
		errs = append(errs, fmt.Errorf("%s: scheduler is %d; want Random, RoundRobin, SourceHash or Maglev", f.Label(v),
			f.Scheduler))
	}
	return errors.Join(append(errs, f.External.validate(v, f, "external"), f.Internal.validate(v, f, "internal"))...)
}

func (t *Target) validate(v *VIP, f *Frontend, kind string) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %s: "+format, append([]any{f.Label(v), kind}, args...)...))
	}
	for i, b := range t.Backends {
		switch {
		case !b.Addr.IsValid() || b.Addr.Port() == 0:
			bad("backend %s: want an address and a port", b.Addr)
		case b.Addr.Addr().Zone() != "" || Family(b.Addr.Addr()) != Family(v.Addr) || b.Addr.Addr().Is4In6():
			bad("backend %s: want the family of the VIP, and no zone", b.Addr)
		}
		// The same endpoint twice, even on different nodes, would count twice.
		if i > 0 && t.Backends[i-1].Addr.Compare(b.Addr) >= 0 {
			bad("backend %s comes after %s; want them sorted, no two alike", b.Addr, t.Backends[i-1].Addr)
		}
	}
	if t.Miss > Drop {
		bad("miss is %d; want Reject or Drop", t.Miss)
	}
	if t.Remote > Preserve {
		bad("remote is %d; want Masquerade or Preserve", t.Remote)
	}
	return errors.Join(errs...)
}

// MaxAffinity is Kubernetes' own limit of timeoutSeconds.
const MaxAffinity = 24 * time.Hour

// maxBackends is the number of slots that ruleset.nft declares.
const maxBackends = 65535
