package metallb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A Conversion is Fanfare's objects in the place of MetalLB's.
type Conversion struct {
	Pools            []*v1alpha1.AddressPool
	Peers            []*v1alpha1.BGPPeer
	Advertisements   []*v1alpha1.BGPAdvertisement
	L2Advertisements []*v1alpha1.L2Advertisement
	// Notes say what the conversion of an object could not keep, or, as Warnings, what remains to be done for the
	// same: then Fanfare does what the field asks for. Object is MetalLB's, such as "BGPPeer tor1".
	Notes []cluster.Problem

	// peers are the names of the BGPPeers that each of MetalLB's became.
	peers map[string][]string
}

// Lost returns the Notes about what Fanfare does not do.
func (conversion *Conversion) Lost() []cluster.Problem {
	return slices.DeleteFunc(slices.Clone(conversion.Notes), func(p cluster.Problem) bool { return p.Warning })
}

// Options are what a user asks of the conversion.
type Options struct {
	// NodeLabel is a label, and its value, that nodes must have for Fanfare to announce
	// anything from them; empty: all nodes announce. A migration gives it to one node after the other.
	NodeLabel, NodeValue string
	// Class is the loadBalancerClass that MetalLB serves (its flag --lb-class); empty: Services without one.
	Class string
}

// Convert returns Fanfare's objects for MetalLB's. An object that cannot be converted without announcing more than
// it did is left out, with a Note.
func Convert(c *Cluster, o Options) *Conversion {
	out := &converter{Conversion: Conversion{peers: map[string][]string{}}, in: c, options: o}
	out.checkNamespaces()
	// Pools and peers come before the advertisements, which name them: what was left out must not be
	// named, and a peer may have become several.
	for _, p := range c.Pools {
		out.addPool(p)
	}
	for _, p := range c.Peers {
		out.addPeer(p)
	}
	for _, a := range c.Advertisements {
		out.addAdvertisement(a)
	}
	for _, a := range c.L2Advertisements {
		out.addL2Advertisement(a)
	}
	out.checkServices()
	return &out.Conversion
}

// A converter makes a Conversion.
type converter struct {
	Conversion
	in      *Cluster
	options Options
}

// A subject is the object, and the names of it in Notes.
type subject struct {
	c      *converter
	object cluster.Key
}

func (c *converter) about(kind, name string) subject { return subject{c, cluster.Named(kind, name)} }

// todo notes what a user must do, or should know, for the converted object to do the same.
func (s subject) todo(field, format string, args ...any) {
	s.note(cluster.Problem{Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

// lost notes what the converted object does not do.
func (s subject) lost(field, format string, args ...any) {
	s.note(cluster.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (s subject) note(p cluster.Problem) {
	p.Object = s.object
	s.c.Notes = append(s.c.Notes, p)
}

// valid reports whether all selectors are valid. An invalid one selects nothing, which a conversion
// must not turn into everything.
func (s subject) valid(path string, list []metav1.LabelSelector) bool {
	for i := range list {
		errs := metav1validation.ValidateLabelSelector(&list[i], metav1validation.LabelSelectorValidationOptions{},
			field.NewPath(path).Index(i))
		if len(errs) > 0 {
			s.lost(errs[0].Field, "%s, so the object is not converted; correct the selector", errs[0].ErrorBody())
			return false
		}
	}
	return true
}

// unknown notes a name that no object has, unless it is known.
func (s subject) unknown(field, name string, known bool) bool {
	if !known {
		s.todo(field, "there is no object %s, so the name is left out", name)
	}
	return !known
}

// restrict adds the label of Options to each conjunction. Pools have no selector of nodes and get none:
// they are Advertised, so that without an advertisement no node announces their addresses.
func (c *converter) restrict(list []conjunction) []conjunction {
	if c.options.NodeLabel == "" {
		return list
	}
	out := make([]conjunction, len(list))
	for i, s := range list {
		out[i] = append(slices.Clone(s), metav1.LabelSelectorRequirement{
			Key: c.options.NodeLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{c.options.NodeValue},
		}).sorted()
	}
	return out
}

// checkNamespaces: MetalLB reads one namespace only, its own. Objects of another one have no effect,
// and may remain from an earlier installation. No object says which of the namespaces is MetalLB's.
func (c *converter) checkNamespaces() {
	if namespaces := sets.List(c.in.namespaces); len(namespaces) > 1 {
		c.about("the objects", "of MetalLB").lost("metadata.namespace", "they are in several namespaces, %s, "+
			"and MetalLB reads one only; convert only the objects of that one", strings.Join(namespaces, ", "))
	}
}

// numbered returns the name of one of several objects that one became: name, name-2, name-3. The
// first keeps its name, by which users and alerts know it.
func numbered(name string, i int, taken func(string) bool) string {
	if i == 0 {
		return name
	}
	for n := i + 1; ; n++ {
		if s := fmt.Sprintf("%s-%d", name, n); !taken(s) {
			return s
		}
	}
}

// named reports whether a list has an object of this name.
func named[T metav1.Object](list []T, name string) bool {
	return slices.ContainsFunc(list, func(o T) bool { return o.GetName() == name })
}

// checkServices notes what Services ask of MetalLB that Fanfare answers in another way. MetalLB shares
// an address between namespaces if the keys are equal; Fanfare wants the consent of both, so that
// a user of one namespace cannot take a port of another's address.
func (c *converter) checkServices() {
	sharers := map[string][]string{} // the namespaces of each key
	for _, s := range c.in.Services {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || classOf(s) != c.options.Class {
			continue
		}
		for _, key := range []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"} {
			if v := s.Annotations[key]; v != "" && !slices.Contains(sharers[v], s.Namespace) {
				sharers[v] = append(sharers[v], s.Namespace)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(sharers)) {
		if n := sharers[key]; len(n) > 1 {
			c.about("the Services", "with the sharing key "+key).todo("metadata.annotations",
				"are in namespaces %s. They keep the addresses that they share; "+
					"for later ones to share, each needs the annotation %s with the other namespaces",
				strings.Join(n, ", "), cluster.SharingNamespacesAnnotation)
		}
	}
	// The API server refuses a change of the field, so that Fanfare must serve MetalLB's class.
	if c.options.Class != "" {
		c.about("the Services", "of class "+c.options.Class).todo("spec.loadBalancerClass",
			"cannot be changed: run Fanfare's controller and speakers with --lb-class=%s", c.options.Class)
	}
}
