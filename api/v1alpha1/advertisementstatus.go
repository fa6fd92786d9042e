package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AdvertisementStatus is what has become of a BGPAdvertisement or an L2Advertisement.
type AdvertisementStatus struct {
	// Nodes counts the nodes that may announce. For BGP: nodes that nodeSelector selects
	// and that a BGPPeer among peers selects, too. For layer 2: nodes that nodeSelector
	// selects, with a speaker and with an interface that is allowed. It does not say
	// whether they are alive.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// Conditions has one, Ready. It is False when no node may announce, when the object
	// has a mistake, or when a name or selector in it refers to nothing; its message says
	// what to change. A warning stands in the message of a condition that is True.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
