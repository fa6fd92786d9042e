package cluster

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
)

// A Version is the version of an object that was read last, parsed or not. Conditions name it even
// for an object that is not used.
type Version struct {
	Kind, Name string
	UID        types.UID // empty if the object did not come from an API server
	Generation int64
}

// Object returns the key of the object.
func (v Version) Object() Key { return Named(v.Kind, v.Name) }

func (v Version) compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Kind, o.Kind), cmp.Compare(v.Name, o.Name))
}

// versioned are the kinds with a version: administrators write their objects.
var versioned = map[string]bool{"AddressPool": true, "BGPPeer": true, "BGPAdvertisement": true, "L2Advertisement": true}
