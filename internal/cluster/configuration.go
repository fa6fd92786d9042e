package cluster

import (
	"maps"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// A Configuration holds the last valid version of each AddressPool, BGPPeer, BGPAdvertisement and
// L2Advertisement. A speaker writes it to its run directory: if an object has a mistake when the
// speaker starts again, that version remains in use. The nil Configuration is empty.
type Configuration struct {
	// Sorted by name, with metadata.name, uid, creationTimestamp and the spec.
	Pools            []*v1alpha1.AddressPool
	Peers            []*v1alpha1.BGPPeer
	Advertisements   []*v1alpha1.BGPAdvertisement
	L2Advertisements []*v1alpha1.L2Advertisement
}

// Objects returns all objects by key.
func (c *Configuration) Objects() map[Key]runtime.Object {
	all := map[Key]runtime.Object{}
	if c == nil {
		return all
	}
	addObjects(all, c.Pools)
	addObjects(all, c.Peers)
	addObjects(all, c.Advertisements)
	addObjects(all, c.L2Advertisements)
	return all
}

func addObjects[T runtime.Object](all map[Key]runtime.Object, list []T) {
	for _, o := range list {
		if key, ok := KeyOf(o); ok {
			all[key] = o
		}
	}
}

// newConfiguration sorts objects into lists.
func newConfiguration(objects map[Key]runtime.Object) *Configuration {
	c := &Configuration{}
	for _, key := range slices.SortedFunc(maps.Keys(objects), func(a, b Key) int { return a.Name.Compare(b.Name) }) {
		switch o := objects[key].(type) {
		case *v1alpha1.AddressPool:
			c.Pools = append(c.Pools, o)
		case *v1alpha1.BGPPeer:
			c.Peers = append(c.Peers, o)
		case *v1alpha1.BGPAdvertisement:
			c.Advertisements = append(c.Advertisements, o)
		case *v1alpha1.L2Advertisement:
			c.L2Advertisements = append(c.L2Advertisements, o)
		}
	}
	return c
}

// configured returns a copy of an object with the parts that a Configuration keeps, nil for an
// object of another kind.
func configured(obj runtime.Object) runtime.Object {
	switch o := obj.(type) {
	case *v1alpha1.AddressPool:
		return &v1alpha1.AddressPool{ObjectMeta: metaOf(o), Spec: *o.Spec.DeepCopy()}
	case *v1alpha1.BGPPeer:
		return &v1alpha1.BGPPeer{ObjectMeta: metaOf(o), Spec: *o.Spec.DeepCopy()}
	case *v1alpha1.BGPAdvertisement:
		return &v1alpha1.BGPAdvertisement{ObjectMeta: metaOf(o), Spec: *o.Spec.DeepCopy()}
	case *v1alpha1.L2Advertisement:
		return &v1alpha1.L2Advertisement{ObjectMeta: metaOf(o), Spec: *o.Spec.DeepCopy()}
	}
	return nil
}

func metaOf(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.GetName(), UID: o.GetUID(), CreationTimestamp: o.GetCreationTimestamp()}
}

// UIDOf returns the UID, empty if the object did not come from an API server.
func UIDOf(obj runtime.Object) types.UID {
	if o, ok := obj.(metav1.Object); ok {
		return o.GetUID()
	}
	return ""
}

// Know makes the Builder use c's version of an object that has a mistake, until it has seen a valid
// version. Call it before the first Set. An object with another UID is another object, and c's
// version does not apply.
func (b *Builder) Know(c *Configuration) { b.known = c.Objects() }

// Known returns the versions from Know of objects that are not set yet.
func (b *Builder) Known() []runtime.Object { return slices.Collect(maps.Values(b.known)) }

// restore sets the known version of an object that is set for the first time.
func (b *Builder) restore(key Key, obj runtime.Object, file string) {
	known, ok := b.known[key]
	if !ok {
		return
	}
	delete(b.known, key)
	if UIDOf(known) == UIDOf(obj) {
		b.Set(known, file)
	}
}

// keepGood stores a valid version of an object.
func (b *Builder) keepGood(key Key, obj runtime.Object) {
	if good := configured(obj); good != nil && !reflect.DeepEqual(b.good[key], good) {
		b.good[key], b.goodChanged = good, true
	}
}

// forgetGood removes a deleted object.
func (b *Builder) forgetGood(key Key) {
	delete(b.known, key)
	if _, ok := b.good[key]; ok {
		delete(b.good, key)
		b.goodChanged = true
	}
}
