package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPAdvertisementSpec says which addresses are announced, by which nodes, to
// which routers and as what. What is left out restricts nothing.
type BGPAdvertisementSpec struct {
	// Pools are the names of the AddressPools whose addresses are announced so.
	// All pools when unset. Once an advertisement names a pool, or all, nothing
	// of it is announced that no advertisement selects.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(n, !format.dns1123Subdomain().validate(n).hasValue())",message="each must be the name of an AddressPool; leave the field out for all"
	Pools []string `json:"pools,omitempty"`

	// ServiceSelector says which Services' addresses are announced so. All when
	// it is unset. An address that several Services share is, if it selects any.
	//
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`

	// NodeSelector says which nodes announce so. All when it is unset.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Peers are the names of the BGPPeers that are told. All when unset.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(n, !format.dns1123Subdomain().validate(n).hasValue())",message="each must be the name of a BGPPeer; leave the field out for all"
	Peers []string `json:"peers,omitempty"`

	// AggregationLength is the length of the IPv4 prefix that is announced in
	// place of single addresses: with 24, 192.0.2.5 is announced as 192.0.2.0/24.
	// Addresses with a Service of externalTrafficPolicy Local are announced one
	// by one nevertheless. What is in the prefix and not assigned is refused, so
	// it must hold nobody else's addresses. 32 when unset.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32
	AggregationLength *int32 `json:"aggregationLength,omitempty"`

	// AggregationLengthV6 is the same for IPv6. 128 when unset.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	AggregationLengthV6 *int32 `json:"aggregationLengthV6,omitempty"`
}

// BGPAdvertisement refines how addresses are announced over BGP. Addresses of a
// pool that no advertisement selects are announced one by one to all routers.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.pools`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="Aggregation",type=integer,JSONPath=`.spec.aggregationLength`
// +kubebuilder:printcolumn:name="Aggregation V6",type=integer,JSONPath=`.spec.aggregationLengthV6`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what is announced so, and how.
	//
	// +optional
	Spec BGPAdvertisementSpec `json:"spec,omitempty"`
}

// BGPAdvertisementList is a list of BGPAdvertisements.
//
// +kubebuilder:object:root=true
type BGPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPAdvertisement `json:"items"`
}
