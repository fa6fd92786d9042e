package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPAdvertisementSpec says which addresses are announced, by which nodes, to
// which routers, and with which prefix lengths and attributes. Fields that are unset
// restrict nothing.
//
// +kubebuilder:validation:XValidation:rule="!has(self.serviceSelector) || (!has(self.aggregationLength) || self.aggregationLength == 32) && (!has(self.aggregationLengthV6) || self.aggregationLengthV6 == 128)",message="excludes an aggregate: routers would send the node traffic for addresses that the selector leaves out, and the node must refuse it; remove serviceSelector, or aggregationLength and aggregationLengthV6",fieldPath=".serviceSelector"
type BGPAdvertisementSpec struct {
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
	// is unset. If Services share an address, one match is enough. A selector cannot
	// be combined with aggregation: the node would attract traffic for addresses in
	// the aggregate that the selector excludes, and reject it. To aggregate the
	// addresses of some Services, give those a pool of their own.
	//
	// +optional
	ServiceSelector *LabelSelector `json:"serviceSelector,omitempty"`

	// NodeSelector selects the nodes that announce. All when it is unset.
	//
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`

	// Peers are the names of the BGPPeers that get the routes. All when unset.
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
	// Addresses with a Service of externalTrafficPolicy Local are still announced
	// one by one. Nodes reject traffic to unassigned addresses in the prefix, so it
	// must not contain other addresses in use. 32 when unset, and the only value
	// allowed with a serviceSelector.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32
	AggregationLength *int32 `json:"aggregationLength,omitempty"`

	// AggregationLengthV6 is the same for IPv6. 128 when unset, and the only value
	// allowed with a serviceSelector.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	AggregationLengthV6 *int32 `json:"aggregationLengthV6,omitempty"`

	// Communities of the routes: 64500:1, a large one as 64500:1:2 (large:64500:1:2 is
	// the same), or a name: accept-own, blackhole, graceful-shutdown, local-as,
	// no-advertise, no-export, no-llgr, no-peer. A Service can add the
	// communities that its AddressPool lists in allowedServiceCommunities. If several
	// advertisements announce one prefix to one router, the route has the communities of
	// all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.matches('^[0-9]{1,5}:[0-9]{1,5}$') ? c != '65535:6' && c.split(':').all(n, int(n) <= 65535) : c.matches('^(large:)?[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}$') ? c.replace('large:', '').split(':').all(n, int(n) <= 4294967295) && int(c.replace('large:', '').split(':')[0]) < 4294967295 : c in ['accept-own', 'blackhole', 'graceful-shutdown', 'local-as', 'no-advertise', 'no-export', 'no-llgr', 'no-peer'])",message="each must be two numbers up to 65535, as in 64500:1 (and not LLGR_STALE, 65535:6), or three up to 4294967295, as in 64500:1:2 (and not AS 4294967295, which RFC 7300 reserves), or one of accept-own, blackhole, graceful-shutdown, local-as, no-advertise, no-export, no-llgr, no-peer"
	Communities []string `json:"communities,omitempty"`

	// LocalPref is the local preference of the routes, sent to routers of the same AS
	// only (iBGP). 100 when unset; routers prefer the highest. If several advertisements
	// announce one prefix to one router, the most specific one that sets the field
	// applies, for localPref, med and asPathPrepend: an advertisement with peers comes
	// first, then with serviceSelector, with pools, with nodeSelector, then the first
	// by name.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	LocalPref *int64 `json:"localPref,omitempty"`

	// MED is the multi-exit discriminator of the routes. Of several links to one AS,
	// routers prefer the lowest. None when unset, which most routers treat as 0.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	MED *int64 `json:"med,omitempty"`

	// ASPathPrepend is how many times the node's AS number is repeated in the AS path,
	// to make it longer. It applies to routers of other ASes (eBGP), with the AS number
	// of each session.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	ASPathPrepend *int32 `json:"asPathPrepend,omitempty"`
}

// BGPAdvertisement says how addresses of pools whose spec.announce is Advertised
// are announced over BGP. An address that no advertisement selects is not announced.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.pools`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="Aggregation",type=integer,JSONPath=`.spec.aggregationLength`
// +kubebuilder:printcolumn:name="Aggregation V6",type=integer,JSONPath=`.spec.aggregationLengthV6`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which addresses are announced, and how.
	//
	// +optional
	Spec BGPAdvertisementSpec `json:"spec,omitempty"`

	// Status says whether nodes can announce. The controller writes it.
	//
	// +optional
	Status AdvertisementStatus `json:"status,omitzero"`
}

// BGPAdvertisementList is a list of BGPAdvertisements.
//
// +kubebuilder:object:root=true
type BGPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPAdvertisement `json:"items"`
}
