package cluster

import (
	"fmt"
	"slices"
)

// What a Service may change by annotation about the announcement of its addresses. Users of a
// namespace write the annotations, and administrators the AddressPool: an annotation has an effect
// on the network only if the pool allows it.

// PermitCommunities returns the communities of a Service that the pool allows, and the others as
// text. A nil pool, as of an address whose pool no longer exists, allows none.
func (p *Pool) PermitCommunities(c *Communities) (allowed *Communities, refused []string) {
	if c == nil { // as for most Services
		return nil, nil
	}
	var list, in Communities
	if p != nil && p.ServiceCommunities != nil {
		list = *p.ServiceCommunities
	}
	for _, n := range c.Standard {
		if slices.Contains(list.Standard, n) {
			in.Standard = append(in.Standard, n)
		} else {
			refused = append(refused, n.String())
		}
	}
	for _, n := range c.Large {
		if slices.Contains(list.Large, n) {
			in.Large = append(in.Large, n)
		} else {
			refused = append(refused, n.String())
		}
	}
	return in.orNil(), refused
}

// PermitsL2Node reports whether a Service may name the node that answers for its address. A nil
// pool does not permit it.
func (p *Pool) PermitsL2Node() bool { return p != nil && p.AllowL2Node }

// RefusedCommunities returns which communities of a Service the pool does not allow; none if it allows all.
func (p *Pool) RefusedCommunities(s *Spec) Problems {
	_, refused := p.PermitCommunities(s.Communities)
	if len(refused) == 0 {
		return nil
	}
	return refusedAnnotation(communitiesAnnotation,
		fmt.Sprintf("%s %s left out: %s", Enumerate(refused), Plural(len(refused), "is", "are"),
			p.withoutPermission("spec.allowedServiceCommunities", "does not list "+Plural(len(refused), "it", "them"))))
}

// RefusedL2Node returns why the node that a Service names does not count; none if it does or the
// Service names none.
func (p *Pool) RefusedL2Node(s *Spec) Problems {
	if s.L2Node == "" || p.PermitsL2Node() {
		return nil
	}
	return refusedAnnotation(l2NodeAnnotation,
		s.L2Node+" is ignored: "+p.withoutPermission("spec.allowL2Node", "is not true"))
}

func refusedAnnotation(key, message string) Problems {
	return Problems{{Field: annotation(key), Message: message, Code: AnnotationRefused}}
}

// withoutPermission continues a sentence with the field that lacks the permission.
func (p *Pool) withoutPermission(field, why string) string {
	if p == nil {
		return "the AddressPool of the address is gone"
	}
	return fmt.Sprintf("%s of AddressPool %s %s", field, p.Name, why)
}

// RefusedAnnotations returns which annotations of a Service the pool makes ineffective.
func (p *Pool) RefusedAnnotations(s *Spec) (all Problems) {
	if p == nil || p.Announce != AnnounceL2 {
		all = p.RefusedCommunities(s)
	}
	if p == nil || p.Announce != AnnounceBGP {
		all = append(all, p.RefusedL2Node(s)...)
	}
	return all
}

// Plural returns the word for n things.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
