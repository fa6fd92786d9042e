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

// validVersions are the last valid versions of the objects of a Configuration.
type validVersions struct {
	known       map[Key]runtime.Object // versions from an earlier process, of objects that are not set yet
	good        map[Key]runtime.Object
	goodChanged bool // since the last snapshot
}

// Know makes the Builder use c's version of an object that has a mistake, until it has seen a valid
// version. Call it before the first Set.
func (v *validVersions) Know(c *Configuration) { v.known = c.Objects() }

// Known returns the versions from Know of objects that are not set yet.
func (v *validVersions) Known() []runtime.Object { return slices.Collect(maps.Values(v.known)) }

// restore returns the known version of an object that is set for the first time, nil if there is none. An
// object with another UID is another object, to which the known version does not apply.
func (v *validVersions) restore(key Key, obj runtime.Object) runtime.Object {
	known := v.known[key]
	delete(v.known, key)
	if known == nil || UIDOf(known) != UIDOf(obj) {
		return nil
	}
	return known
}

// keep stores a valid version of an object.
func (v *validVersions) keep(key Key, obj runtime.Object) {
	if good := configured(obj); good != nil && !reflect.DeepEqual(v.good[key], good) {
		v.good[key], v.goodChanged = good, true
	}
}

// forget removes a deleted object.
func (v *validVersions) forget(key Key) {
	delete(v.known, key)
	if _, ok := v.good[key]; ok {
		delete(v.good, key)
		v.goodChanged = true
	}
}
