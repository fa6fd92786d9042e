package cluster

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// An L2Advertisement says which addresses nodes answer for by ARP and NDP.
type L2Advertisement struct {
	Name string
	UID  types.UID // empty when the object did not come from an API server
	// Pools are sorted names; none: all.
	Pools                         []string
	ServiceSelector, NodeSelector Selector
	// Preferred says which of the nodes should answer, in the object's order.
	Preferred []Preference
	// Interfaces are sorted names, or patterns of [path.Match] with * and ?; none: all.
	Interfaces []string
	Yield      bool // to another host that claims the address
}

// A Preference gives nodes a weight.
type Preference struct {
	Weight   int // 1 to 100
	Selector Selector
}

// parseL2Advertisement returns nil for any mistake: with a partial restriction, nodes would answer
// where they should not.
func parseL2Advertisement(o *v1alpha1.L2Advertisement) (*L2Advertisement, Problems) {
	var p Problems
	s := &o.Spec
	a := &L2Advertisement{
		Name:            o.Name,
		UID:             o.UID,
		Pools:           parseNames("spec.pools", "an AddressPool", s.Pools, 64, &p),
		ServiceSelector: parseSelector("spec.serviceSelector", s.ServiceSelector, &p),
		NodeSelector:    parseSelector("spec.nodeSelector", s.NodeSelector, &p),
		Interfaces:      parseInterfaces(s.Interfaces, &p),
		Yield:           s.OnConflict == v1alpha1.ConflictYield,
	}
	switch s.OnConflict {
	case "", v1alpha1.ConflictDefend, v1alpha1.ConflictYield:
	default:
		p.Add("spec.onConflict", string(s.OnConflict), "must be Defend or Yield")
	}
	if s.PreferredNodeSelectors != nil && len(s.PreferredNodeSelectors) == 0 {
		p.Add("spec.preferredNodeSelectors", "", "is empty; name at least one, or leave the field out")
	}
	p.bound("spec.preferredNodeSelectors", len(s.PreferredNodeSelectors), 16)
	for i, pref := range s.PreferredNodeSelectors {
		field := fmt.Sprintf("spec.preferredNodeSelectors[%d]", i)
		if pref.Preference == nil {
			p.Add(field+".preference", "", "missing; write a selector of nodes, or {} for all")
		}
		a.Preferred = append(a.Preferred, Preference{
			Weight:   int(parseNumber(field+".weight", int64(pref.Weight), 1, 100, &p)),
			Selector: parseSelector(field+".preference", pref.Preference, &p),
		})
	}
	if len(p) != 0 {
		return nil, p
	}
	return a, nil
}

func parseInterfaces(names []string, p *Problems) []string {
	for i, name := range names {
		// No brackets and no backslash: they have a meaning in path.Match that is not documented.
		if !interfaceName.MatchString(name) || strings.ContainsAny(name, `[]\`+"\t\n\v\f\r") || name == "." ||
			name == ".." {
			p.Add("spec.interfaces["+strconv.Itoa(i)+"]", name,
				"each must be the name of an interface, or a pattern with * and ?, such as eth0 or bond*; leave "+
					"the field out for all")
		}
	}
	return parseSet("spec.interfaces", "interface", names, 16, p)
}

// SelectsPool reports whether the advertisement applies to a pool.
func (l *L2Advertisement) SelectsPool(name string) bool {
	return len(l.Pools) == 0 || slices.Contains(l.Pools, name)
}

// Allows reports whether nodes may answer on an interface. named reports that the interface is
// named without a pattern: then they answer there even for addresses of other subnets.
func (l *L2Advertisement) Allows(iface string) (ok, named bool) {
	if len(l.Interfaces) == 0 {
		return true, false
	}
	if slices.Contains(l.Interfaces, iface) {
		return true, true
	}
	return slices.ContainsFunc(l.Interfaces, func(pattern string) bool {
		match, err := path.Match(pattern, iface)
		return match && err == nil
	}), false
}

// Weight returns how much the advertisement prefers a node with these labels.
func (l *L2Advertisement) Weight(node labels.Set) (sum int) {
	for _, p := range l.Preferred {
		if p.Selector.Matches(node) {
			sum += p.Weight
		}
	}
	return sum
}
