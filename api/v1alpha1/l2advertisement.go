package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// L2AdvertisementSpec says which addresses are answered for by ARP and NDP, by which
// nodes and on which interfaces. What is left out restricts nothing.
type L2AdvertisementSpec struct {
	// Pools are the names of the AddressPools that the advertisement selects; all
	// when unset. It applies only to those whose spec.announce is Advertised.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(n, !format.dns1123Subdomain().validate(n).hasValue())",message="each must be the name of an AddressPool; leave the field out for all"
	Pools []string `json:"pools,omitempty"`

	// ServiceSelector says which Services' addresses are answered for. All when it is
	// unset. An address that several Services share is, if it selects any.
	//
	// +optional
	ServiceSelector *LabelSelector `json:"serviceSelector,omitempty"`

	// NodeSelector says which nodes may answer. All when it is unset.
	//
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`

	// PreferredNodeSelectors say which of them should, as long as one of these can:
	// those with the largest sum of the weights of what matches them. Addresses are
	// spread evenly over nodes that are preferred equally.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PreferredNodeSelectors []PreferredNodeSelector `json:"preferredNodeSelectors,omitempty"`

	// Interfaces are those on which nodes answer, by name or by a pattern in which *
	// stands for any characters and ? for one: eth0, bond*, ens?. All when unset. A node
	// answers for an address on those of its interfaces that are in the address's
	// subnet, and on one that is named here without a pattern in any case.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[^][:space:]/:%\\\\\\\\[]+$') && n != '.' && n != '..')",message="each must be the name of an interface, or a pattern with * and ?, such as eth0 or bond*; leave the field out for all"
	Interfaces []string `json:"interfaces,omitempty"`
}

// PreferredNodeSelector gives the nodes that it selects a weight.
type PreferredNodeSelector struct {
	// Weight is added to that of each node that Preference selects.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`

	// Preference selects nodes. An empty one selects all.
	//
	// +required
	Preference *LabelSelector `json:"preference"`
}

// L2AdvertisementStatus is what has become of an L2Advertisement.
type L2AdvertisementStatus struct {
	// Nodes counts those that may answer: selected, with a speaker, and with an
	// interface that is allowed. It says nothing of whether they are alive.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// Conditions has one, Ready, which says whether any node may answer, and if not, or
	// not so as was meant, what to change.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// L2Advertisement says how addresses of pools whose spec.announce is Advertised
// are announced by ARP and NDP. One node at a time answers for each address. An
// address that no advertisement selects is not announced.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.pools`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.interfaces`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type L2Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what is answered for, by whom and where.
	//
	// +optional
	Spec L2AdvertisementSpec `json:"spec,omitempty"`

	// Status is what has become of it. The controller writes it.
	//
	// +optional
	Status L2AdvertisementStatus `json:"status,omitzero"`
}

// L2AdvertisementList is a list of L2Advertisements.
//
// +kubebuilder:object:root=true
type L2AdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []L2Advertisement `json:"items"`
}
