package cluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// parseEligibility reads which Services are eligible for addresses of a pool. An unreadable part
// admits no Service: an address that the wrong tenant has cannot be taken back.
func parseEligibility(s *v1alpha1.AddressPoolSpec, pool *Pool, p *Problems) {
	pool.Namespaces = parseNames("spec.namespaces", "a Namespace", s.Namespaces, 256, p)
	for i, name := range s.Namespaces {
		if len(name) > validation.DNS1123LabelMaxLength || strings.Contains(name, ".") {
			p.Add(fmt.Sprintf("spec.namespaces[%d]", i), name,
				"must be the name of a Namespace, of at most 63 characters and without dots")
		}
	}
	pool.NamespaceSelector = parseSelector("spec.namespaceSelector", s.NamespaceSelector, p)
	pool.ServiceSelector = parseSelector("spec.serviceSelector", s.ServiceSelector, p)
	if pool.Quota = int(s.NamespaceQuota); pool.Quota < 0 {
		pool.Quota = 1
		p.Add("spec.namespaceQuota", fmt.Sprint(s.NamespaceQuota),
			"must be 1 or more, or left out for no limit; taken for 1")
	}
	pool.ReservedQuota = parseReservedQuota(s.NamespaceReservedQuota, p)
}

// DefaultReservedQuota is the CRD's default of spec.namespaceReservedQuota.
const DefaultReservedQuota = 4

func parseReservedQuota(n *int32, p *Problems) int {
	switch {
	case n == nil:
		return DefaultReservedQuota
	case *n < 0:
		p.Add("spec.namespaceReservedQuota", fmt.Sprint(*n), "must be 0 or more; taken for 0")
		return 0
	}
	return int(*n)
}

// parsePermissions reads what Services may change by annotation. An invalid community is not
// allowed.
func parsePermissions(s *v1alpha1.AddressPoolSpec, pool *Pool, p *Problems) {
	const field = "spec.allowedServiceCommunities"
	p.bound(field, len(s.AllowedServiceCommunities), 64)
	p.once(field, s.AllowedServiceCommunities)
	pool.ServiceCommunities = parseCommunities(field, s.AllowedServiceCommunities, "", p)
	pool.AllowL2Node = s.AllowL2Node
}

// Excludes returns why a Service gets no address of the pool, as the end of a sentence about the
// pool; empty if it may get one. namespaces are sorted. The labels of a namespace that is not among
// them are unknown: then no selector of namespaces admits it.
func (p *Pool) Excludes(s *Spec, namespaces []*Namespace) string {
	ns := s.Name.Namespace
	if p.Namespaces != nil && !has(p.Namespaces, ns) {
		return fmt.Sprintf("is for %s, not for %s", namespacesText(p.Namespaces), ns)
	}
	if sel := p.NamespaceSelector; !sel.Empty() {
		n := findNamespace(namespaces, ns)
		if n == nil {
			return fmt.Sprintf("is for namespaces that match %s, and the labels of %s are not known", selectorText(sel),
				ns)
		}
		if !sel.Matches(n.Labels) {
			return fmt.Sprintf("is for namespaces that match %s, and %s does not", selectorText(sel), ns)
		}
	}
	if sel := p.ServiceSelector; !sel.Matches(s.Labels) {
		return fmt.Sprintf("is for Services that match %s, and this one does not", selectorText(sel))
	}
	return ""
}

func namespacesText(names []string) string {
	switch len(names) {
	case 0:
		return "no namespace"
	case 1:
		return "namespace " + names[0]
	}
	return "namespaces " + Enumerate(names)
}

// selectorText describes a selector in a sentence.
func selectorText(s Selector) string {
	if s.String() == nothing {
		return "a selector with a mistake in it"
	}
	return s.String()
}
