package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Allocation says which Services get addresses of a pool.
//
// +kubebuilder:validation:Enum=Automatic;OnRequest;Drained
type Allocation string

const (
	// Automatic allocates to any Service that needs an address.
	Automatic Allocation = "Automatic"
	// OnRequest allocates only to Services that name the pool or the address.
	OnRequest Allocation = "OnRequest"
	// Drained allocates no more addresses. Assigned addresses stay.
	Drained Allocation = "Drained"
)

// Announce says how the addresses of a pool are announced.
//
// +kubebuilder:validation:Enum=BGP;L2;Advertised
type Announce string

const (
	// AnnounceBGP announces each address to the router of every BGPPeer that selects the
	// node.
	AnnounceBGP Announce = "BGP"
	// AnnounceL2 answers ARP and NDP requests on every interface in the address's subnet.
	AnnounceL2 Announce = "L2"
	// AnnounceAdvertised announces as configured in the advertisements that select the pool.
	AnnounceAdvertised Announce = "Advertised"
)

// AddressPoolSpec is the configuration of a pool.
type AddressPoolSpec struct {
	// Addresses of the pool, of IPv4, IPv6 or both. Each is a CIDR such as
	// 192.0.2.0/26, a range such as 192.0.2.10-192.0.2.50 (both ends included), or one
	// address. No other pool may contain any of them.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a == b))",message="an entry is in this pool already; remove one of the two"
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) || isCIDR(self) || self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e))",message="each must be a CIDR such as 192.0.2.0/26, a range such as 192.0.2.10-192.0.2.50, or one address, without leading zeros"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="a CIDR must begin at its network's first address: 192.0.2.0/26, not 192.0.2.10/26; for one address leave the length out"
	// +kubebuilder:validation:items:XValidation:rule="!(self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e))) || [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].map(e, ip(e).family()).min() == [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].map(e, ip(e).family()).max()",message="both ends of a range must be of one address family"
	// +kubebuilder:validation:items:XValidation:rule="!(self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e) && ip(e).family() == 4)) || [[self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].map(e, e.split('.').map(o, int(o))).map(o, ((o[0] * 256 + o[1]) * 256 + o[2]) * 256 + o[3])].all(n, n[0] <= n[1])",message="a range must begin with its lower address: 192.0.2.10-192.0.2.50, not 192.0.2.50-192.0.2.10"
	// +kubebuilder:validation:items:XValidation:rule="!(self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e))) || self.contains('.') || self.lowerAscii().substring(0, self.indexOf('-')).trim().substring(0, self.lowerAscii().substring(0, self.indexOf('-')).trim().lastIndexOf(':')) != self.lowerAscii().substring(self.indexOf('-') + 1).trim().substring(0, self.lowerAscii().substring(self.indexOf('-') + 1).trim().lastIndexOf(':')) || '0000'.substring(size(self.lowerAscii().substring(0, self.indexOf('-')).trim()) - self.lowerAscii().substring(0, self.indexOf('-')).trim().lastIndexOf(':') - 1) + self.lowerAscii().substring(0, self.indexOf('-')).trim().substring(self.lowerAscii().substring(0, self.indexOf('-')).trim().lastIndexOf(':') + 1) <= '0000'.substring(size(self.lowerAscii().substring(self.indexOf('-') + 1).trim()) - self.lowerAscii().substring(self.indexOf('-') + 1).trim().lastIndexOf(':') - 1) + self.lowerAscii().substring(self.indexOf('-') + 1).trim().substring(self.lowerAscii().substring(self.indexOf('-') + 1).trim().lastIndexOf(':') + 1)",message="a range must begin with its lower address: 2001:db8::10-2001:db8::50, not 2001:db8::50-2001:db8::10"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/4', '255.255.255.255/32', '::/127', 'fe80::/10', 'ff00::/8'].all(r, !cidr(r).containsIP(cidr(self).ip()) && !cidr(self).containsIP(cidr(r).ip()))",message="contains unspecified, loopback, link-local, multicast, broadcast or IPv4-mapped addresses, which no Service can have; leave them out"
	// +kubebuilder:validation:items:XValidation:rule="!(isIP(self) || self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e))) || (isIP(self) ? [self] : [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()]).all(e, ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/4', '255.255.255.255/32', '::/127', 'fe80::/10', 'ff00::/8'].all(r, !cidr(r).containsIP(e)))",message="contains unspecified, loopback, link-local, multicast, broadcast or IPv4-mapped addresses, which no Service can have; leave them out"
	// +kubebuilder:validation:items:XValidation:rule="!(self.contains('-') && [self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].all(e, isIP(e) && ip(e).family() == 4)) || [[self.substring(0, self.indexOf('-')).trim(), self.substring(self.indexOf('-') + 1).trim()].map(e, e.split('.').map(o, int(o))).map(o, ((o[0] * 256 + o[1]) * 256 + o[2]) * 256 + o[3])].all(n, [2130706432, 2851995648, 3758096384].all(first, n[1] < first || n[0] > first))",message="contains unspecified, loopback, link-local, multicast, broadcast or IPv4-mapped addresses, which no Service can have; leave them out"
	Addresses []string `json:"addresses"`

	// Announce says how the addresses are announced. BGP: one by one, without
	// attributes, to the router of every BGPPeer that selects the node. L2: by ARP
	// and NDP, on every interface in the address's subnet. Advertised: as configured in
	// the BGPAdvertisements and L2Advertisements that select the pool; without any, the
	// addresses are not announced. With BGP and L2, advertisements do not apply to the
	// pool.
	//
	// +required
	Announce Announce `json:"announce"`

	// Allocation says which Services get addresses: Automatic any Service, OnRequest
	// only Services that name the pool or the address, Drained none (assigned addresses
	// stay).
	//
	// +optional
	// +kubebuilder:default=Automatic
	Allocation Allocation `json:"allocation,omitempty"`

	// AvoidBuggyIPs excludes IPv4 addresses that end in .0 or .255: some old clients
	// treat them as network or broadcast addresses.
	//
	// +optional
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// Priority orders the pools for a Service that names none: the highest first, then
	// by name. Any number, 0 when unset.
	//
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// Namespaces are the only namespaces whose Services may get addresses of the
	// pool; all when unset. Only Services that match namespaces, namespaceSelector
	// and serviceSelector are eligible, even if they name the pool. When these fields
	// change, a Service keeps its addresses.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespaces []string `json:"namespaces,omitempty"`

	// NamespaceSelector selects namespaces by their labels. Only their Services
	// may get addresses of the pool. All namespaces when unset.
	//
	// +optional
	NamespaceSelector *LabelSelector `json:"namespaceSelector,omitempty"`

	// ServiceSelector selects Services by their labels. Only those may get
	// addresses of the pool. All Services when unset.
	//
	// +optional
	ServiceSelector *LabelSelector `json:"serviceSelector,omitempty"`

	// NamespaceQuota is how many addresses of the pool, of each family, the
	// Services of one namespace may have together; at least 1, any number when
	// unset. Reserved addresses count. If a namespace has more after the quota is
	// lowered, it keeps them, and gets no others until it has fewer.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	NamespaceQuota int32 `json:"namespaceQuota,omitempty"`

	// NamespaceReservedQuota is how many addresses of the pool, of each family, stay
	// reserved for deleted Services of one namespace that had the annotation
	// fanfare.io/reserve. Beyond it, the address of a deleted Service is free. 0: the
	// annotation has no effect.
	//
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=0
	NamespaceReservedQuota *int32 `json:"namespaceReservedQuota,omitempty"`

	// AllowedServiceCommunities are the communities that a Service may add to the BGP
	// routes of its own addresses, by the annotation fanfare.io/bgp-communities; none when
	// unset. They are written as in BGPAdvertisements. Aggregates never have communities
	// of Services.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.matches('^[0-9]{1,5}:[0-9]{1,5}$') ? c != '65535:6' && c.split(':').all(n, int(n) <= 65535) : c.matches('^(large:)?[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}$') ? c.replace('large:', '').split(':').all(n, int(n) <= 4294967295) && int(c.replace('large:', '').split(':')[0]) < 4294967295 : c in ['accept-own', 'blackhole', 'graceful-shutdown', 'local-as', 'no-advertise', 'no-export', 'no-llgr', 'no-peer'])",message="each must be two numbers up to 65535, as in 64500:1 (and not LLGR_STALE, 65535:6), or three up to 4294967295, as in 64500:1:2 (and not AS 4294967295, which RFC 7300 reserves), or one of accept-own, blackhole, graceful-shutdown, local-as, no-advertise, no-export, no-llgr, no-peer"
	AllowedServiceCommunities []string `json:"allowedServiceCommunities,omitempty"`

	// AllowL2Node lets a Service name the node that answers for its address over Layer 2,
	// by the annotation fanfare.io/l2-node. The annotation has no effect when it is unset.
	//
	// +optional
	AllowL2Node bool `json:"allowL2Node,omitempty"`
}

// PoolAddresses counts the addresses of one family. A larger number than
// 9223372036854775807 is reported as this one.
type PoolAddresses struct {
	// Total is the number of addresses of the pool.
	Total int64 `json:"total"`
	// Assigned is the number of addresses that Services hold.
	Assigned int64 `json:"assigned"`
	// Reserved is the number of addresses that are reserved and that no Service holds.
	//
	// +optional
	Reserved int64 `json:"reserved,omitempty"`
	// Available is the number of addresses that are neither assigned nor reserved.
	Available int64 `json:"available"`
}

// NamespaceAddresses counts the addresses that the Services of a namespace have, or that
// are reserved for them.
type NamespaceAddresses struct {
	// Namespace is the name of the namespace.
	Namespace string `json:"namespace"`
	// IPv4 is how many IPv4 addresses its Services have.
	//
	// +optional
	IPv4 int64 `json:"ipv4,omitempty"`
	// IPv6 is how many IPv6 addresses its Services have.
	//
	// +optional
	IPv6 int64 `json:"ipv6,omitempty"`
	// Reserved is how many addresses are reserved for its Services in addition.
	//
	// +optional
	Reserved int64 `json:"reserved,omitempty"`
}

// AddressPoolStatus reports the use of a pool's addresses, and whether the pool is ready.
type AddressPoolStatus struct {
	// IPv4 counts the IPv4 addresses. It is absent when the pool has none.
	//
	// +optional
	IPv4 *PoolAddresses `json:"ipv4,omitempty"`

	// IPv6 counts the IPv6 addresses. It is absent when the pool has none.
	//
	// +optional
	IPv6 *PoolAddresses `json:"ipv6,omitempty"`

	// Namespaces counts the assigned and reserved addresses by namespace: the 100
	// namespaces with the most, in descending order. A shared address counts for each of
	// its namespaces.
	//
	// +optional
	// +listType=map
	// +listMapKey=namespace
	Namespaces []NamespaceAddresses `json:"namespaces,omitempty"`

	// OtherNamespaces is how many namespaces have addresses of the pool, or reserved
	// ones, and are not in the list.
	//
	// +optional
	OtherNamespaces int64 `json:"otherNamespaces,omitempty"`

	// Conditions has only Ready. It is True when a Service can get an address of the
	// pool and spec.announce announces it.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressPool is a set of addresses for Services of type LoadBalancer.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Announce",type=string,JSONPath=`.spec.announce`
// +kubebuilder:printcolumn:name="Allocation",type=string,JSONPath=`.spec.allocation`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="IPv4 Assigned",type=integer,JSONPath=`.status.ipv4.assigned`
// +kubebuilder:printcolumn:name="IPv4 Reserved",type=integer,JSONPath=`.status.ipv4.reserved`,priority=1
// +kubebuilder:printcolumn:name="IPv4 Available",type=integer,JSONPath=`.status.ipv4.available`
// +kubebuilder:printcolumn:name="IPv6 Assigned",type=integer,JSONPath=`.status.ipv6.assigned`
// +kubebuilder:printcolumn:name="IPv6 Available",type=integer,JSONPath=`.status.ipv6.available`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the addresses, and which Services may get them.
	//
	// +required
	Spec AddressPoolSpec `json:"spec"`

	// Status counts the addresses. The controller writes it.
	//
	// +optional
	Status AddressPoolStatus `json:"status,omitzero"`
}

// AddressPoolList is a list of AddressPools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressPool `json:"items"`
}
