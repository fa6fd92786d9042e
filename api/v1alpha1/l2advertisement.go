package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// L2AdvertisementSpec selects addresses, nodes and interfaces. Fields that are unset
// restrict nothing.
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

	// ServiceSelector selects the Services whose addresses are announced. All when it
	// is unset. If Services share an address, one match is enough.
	//
	// +optional
	ServiceSelector *LabelSelector `json:"serviceSelector,omitempty"`

	// NodeSelector selects the nodes that may answer. All when it is unset.
	//
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`

	// PreferredNodeSelectors prefer some of these nodes: a node with the largest sum of
	// weights answers, as long as one of them can. Addresses are spread evenly over
	// equally preferred nodes.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PreferredNodeSelectors []PreferredNodeSelector `json:"preferredNodeSelectors,omitempty"`

	// Interfaces on which nodes answer, by name or by a pattern in which * stands for
	// any characters and ? for one: eth0, bond*, ens?. All when unset. A node answers
	// for an address on the matching interfaces that have the address's subnet. On an
	// interface that is named without a pattern it answers for all addresses.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[^][:space:]/:%\\\\\\\\[]+$') && n != '.' && n != '..')",message="each must be the name of an interface, or a pattern with * and ?, such as eth0 or bond*; leave the field out for all"
	Interfaces []string `json:"interfaces,omitempty"`

	// OnConflict is what a node does when another host claims an address that it holds
	// (RFC 5227 §2.4). Defend keeps the address and announces it again, once in 10 s. Yield
	// gives it up after the second claim within 10 s, and probes later whether it is free.
	// In both cases the status and an Event name the other host.
	//
	// +optional
	// +kubebuilder:default=Defend
	OnConflict ConflictPolicy `json:"onConflict,omitempty"`
}

// ConflictPolicy is what a node does about another host that claims an address.
//
// +kubebuilder:validation:Enum=Defend;Yield
type ConflictPolicy string

const (
	ConflictDefend ConflictPolicy = "Defend"
	ConflictYield  ConflictPolicy = "Yield"
)

// PreferredNodeSelector gives the nodes that it selects a weight.
type PreferredNodeSelector struct {
	// Weight is added to the sum of each node that preference selects.
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

	// Spec selects addresses, nodes and interfaces.
	//
	// +optional
	Spec L2AdvertisementSpec `json:"spec,omitempty"`

	// Status says whether nodes can announce. The controller writes it.
	//
	// +optional
	Status AdvertisementStatus `json:"status,omitzero"`
}

// L2AdvertisementList is a list of L2Advertisements.
//
// +kubebuilder:object:root=true
type L2AdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []L2Advertisement `json:"items"`
}
