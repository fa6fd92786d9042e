package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AdvertisementStatus is the status of a BGPAdvertisement or an L2Advertisement.
type AdvertisementStatus struct {
	// Nodes counts the nodes that can announce, alive or not. For BGP, nodeSelector and
	// a BGPPeer among peers select the node. Over Layer 2, nodeSelector selects it, and
	// it has a speaker and an interface that is allowed.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// Conditions has only Ready. It is False when no node can announce, when a field is
	// invalid, or when a name or selector matches no object; the message says what to
	// change. If it is True, the message may have a warning.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
