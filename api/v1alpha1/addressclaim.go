package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AddressClaimSpec says which Services hold an address.
type AddressClaimSpec struct {
	// Address is the address that is claimed, in its canonical form (RFC 5952).
	// It cannot be changed: another address needs another claim.
	//
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an address in canonical form, such as 192.0.2.10 or 2001:db8::10"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/4', '255.255.255.255/32', '::/127', 'fe80::/10', 'ff00::/8'].all(r, !cidr(r).containsIP(self))",message="must be an address that a Service can have, and not unspecified, loopback, link-local, multicast or broadcast"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: delete the claim and create one for the other address"
	Address string `json:"address"`

	// Pool is the AddressPool that the address comes from.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// Announce is a copy of spec.announce of the AddressPool. It applies to an address
	// that remains assigned after it was removed from the pool. Such an address is not
	// announced while the field is unset.
	//
	// +optional
	Announce Announce `json:"announce,omitempty"`

	// Holders are the Services that hold the address: several if they share it, none if
	// the address is only reserved.
	//
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Holders []ClaimHolder `json:"holders,omitempty"`

	// Node is the preferred node to answer for the address over Layer 2. Any node when
	// it is unset.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Reserved keeps the claim when its last holder is deleted. Then only a Service
	// that requests the address can get it.
	//
	// +optional
	Reserved bool `json:"reserved,omitempty"`

	// ReservedFor are the Services for which the address is reserved while no Service
	// holds it. A named Service gets it without a request once it exists. Other Services
	// of the same namespace get it only if they request the address, and Services of
	// other namespaces never. The controller adds a deleted Service that had the
	// annotation fanfare.io/reserve, up to namespaceReservedQuota of the AddressPool. It
	// removes the Service when it exists again, or when its namespace is gone. To end such
	// a reservation, delete the claim.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	ReservedFor []ClaimReservation `json:"reservedFor,omitempty"`

	// Replaced counts the addresses that the controller assigned to the holder before this
	// one, and replaced because another host on the network uses them.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replaced int32 `json:"replaced,omitempty"`

	// Services lists the Services that hold the address or for which it is reserved, as
	// text for the output of kubectl.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Services string `json:"services,omitempty"`
}

// ClaimReservation is a Service, or a namespace, for which the address is reserved.
type ClaimReservation struct {
	// Namespace of the Service.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name of the Service. Any Service of the namespace that requests the address when
	// it is unset.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// ClaimHolder is a Service that holds the address.
type ClaimHolder struct {
	// Namespace of the Service.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name of the Service.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID of the Service. A later Service of the same name has another UID.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`

	// ResourceVersion is the version of the Service to which the address was assigned.
	// The controller updates the status of that version only, and releases the address
	// only when a later version exists.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// Reserve keeps the address for the Service when it is deleted.
	//
	// +optional
	Reserve bool `json:"reserve,omitempty"`
}

// AddressClaim records which Services hold an address. Its name is the address, with
// '-' for ':' ([ClaimName]). The controller creates the claim before it writes the
// address into a Service's status. Because names are unique in the API server, no
// address is assigned twice.
//
// The controller writes claims. A user may create a claim with reserved set and without
// holders: then the address is not assigned, or only to the Services in reservedFor.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Services",type=string,JSONPath=`.spec.services`
// +kubebuilder:printcolumn:name="Reserved",type=boolean,JSONPath=`.spec.reserved`
// +kubebuilder:printcolumn:name="Reserved For",type=string,JSONPath=`.spec.reservedFor[0].namespace`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == (self.spec.address.startsWith(':') ? '0' : \"\") + self.spec.address.replace(':', '-') + (self.spec.address.endsWith(':') ? '0' : \"\")",message="metadata.name must be spec.address with '-' for ':', such as 192.0.2.10 or 2001-db8--10 (0--1 for ::1, 2001-db8--0 for 2001:db8::)"
type AddressClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the address and the Services that hold it.
	//
	// +required
	Spec AddressClaimSpec `json:"spec"`
}

// AddressClaimList is a list of AddressClaims.
//
// +kubebuilder:object:root=true
type AddressClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressClaim `json:"items"`
}
