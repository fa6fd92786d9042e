package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxSpeakerReasons is how many reasons a SpeakerStatus lists. All reasons for 10,000
// addresses would exceed etcd's request limit (1.5 MiB); the speaker's own socket has
// them.
const MaxSpeakerReasons = 100

// SpeakerReport has the state of one speaker.
type SpeakerReport struct {
	// Version of the speaker.
	//
	// +optional
	Version string `json:"version,omitempty"`

	// Changed is when the report last changed. It does not show that the speaker is
	// alive.
	//
	// +optional
	Changed metav1.Time `json:"changed,omitzero"`

	// Established has the number of established sessions, and of all: "1/2".
	//
	// +optional
	Established string `json:"established,omitempty"`

	// Sessions are the BGP sessions of the node.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Sessions []SpeakerSession `json:"sessions,omitempty"`

	// Members has the number of nodes from which this node receives messages, and of all
	// known members: "2/3"; empty without membership. With n members, a change of nothing else is
	// written n/4 seconds after the last write at the earliest.
	//
	// +optional
	Members string `json:"members,omitempty"`

	// Addresses counts the addresses of Services.
	//
	// +optional
	Addresses SpeakerAddresses `json:"addresses,omitzero"`

	// Interfaces on which the node can answer for addresses: their subnet has addresses
	// of a pool, or an L2Advertisement names them.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Interfaces []SpeakerInterface `json:"interfaces,omitempty"`

	// Conflicts are addresses that the node does not announce over Layer 2, because another
	// host answered when the node probed for them, or claimed them and spec.onConflict of the
	// L2Advertisement is Yield. An entry remains for 10 minutes after the node stopped to
	// probe, so that the controller can avoid the address.
	//
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=64
	Conflicts []SpeakerConflict `json:"conflicts,omitempty"`

	// Repairs counts how often another program has changed the speaker's rules in the
	// kernel since the speaker started.
	//
	// +optional
	Repairs int64 `json:"repairs,omitempty"`

	// Error of the last attempt to program the kernel and to announce; empty if it
	// succeeded.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Error string `json:"error,omitempty"`

	// Attention counts the problems that need an action.
	//
	// +optional
	Attention int32 `json:"attention,omitempty"`

	// Reasons why addresses are not announced, or not as requested; the first 100.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Reasons []SpeakerReason `json:"reasons,omitempty"`
}

// SpeakerSession is one BGP session.
type SpeakerSession struct {
	// Name of the BGPPeer.
	//
	// +required
	Name string `json:"name"`
	// Address of the router, or the name of the interface while the router is unknown.
	//
	// +required
	Address string `json:"address"`
	// ASN of the router.
	//
	// +required
	ASN int64 `json:"asn"`
	// State is a state of RFC 4271 §8.2.2.
	//
	// +required
	State string `json:"state"`
	// Since is when the session was established or lost.
	//
	// +optional
	Since metav1.Time `json:"since,omitzero"`
	// Routes counts the routes that are sent to the router.
	//
	// +optional
	Routes int32 `json:"routes"`
	// BFD is Up while BFD receives the router's packets, otherwise Down; empty without
	// BFD.
	//
	// +optional
	BFD string `json:"bfd,omitempty"`
	// Error is why the session is not up.
	//
	// +optional
	Error string `json:"error,omitempty"`
}

// SpeakerInterface is an interface of the node, up and able to broadcast.
type SpeakerInterface struct {
	// Name of the interface.
	//
	// +required
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`
	// MAC is the hardware address, such as 02:00:00:00:00:01.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=23
	MAC string `json:"mac,omitempty"`
	// Prefixes are the subnets of the interface, such as 192.0.2.0/24, without
	// link-local ones.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=49
	Prefixes []string `json:"prefixes,omitempty"`
}

// MaxSpeakerConflicts is how many conflicts a SpeakerStatus has at most.
const MaxSpeakerConflicts = 64

// SpeakerConflict is an address that another host uses.
type SpeakerConflict struct {
	// Address that another host uses.
	//
	// +required
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// MAC is the hardware address of the other host.
	//
	// +required
	// +kubebuilder:validation:MaxLength=23
	MAC string `json:"mac"`
	// Interface of the node that received the other host's packet.
	//
	// +required
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface"`
	// Held is true if the node answered for the address before. The controller gives no
	// other address for one that was held.
	//
	// +optional
	Held bool `json:"held,omitempty"`
}

// SpeakerAddresses counts addresses.
type SpeakerAddresses struct {
	// Assigned addresses are held by Services.
	Assigned int32 `json:"assigned"`
	// Forwarded addresses are programmed in the kernel.
	Forwarded int32 `json:"forwarded"`
	// Announced addresses are announced to at least one router.
	Announced int32 `json:"announced"`
	// Lingering addresses are withdrawn, but still forwarded until routers have
	// processed the withdrawal.
	Lingering int32 `json:"lingering"`
}

// SpeakerReason is why an address is not announced, or not as requested.
type SpeakerReason struct {
	// Address is absent when the Service has none.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// Service is namespace/name, absent if the reason is about another object.
	//
	// +optional
	Service string `json:"service,omitempty"`
	// Code identifies the reason, for programs.
	//
	// +required
	Code string `json:"code"`
	// Message explains the reason, for people.
	//
	// +required
	Message string `json:"message"`
}

// SpeakerStatus has the state of a node's speaker. Its name is that of the node; only that
// speaker writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=speakerstatuses,singular=speakerstatus
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.established`
// +kubebuilder:printcolumn:name="Members",type=string,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name="Addresses",type=integer,JSONPath=`.status.addresses.assigned`
// +kubebuilder:printcolumn:name="Forwarded",type=integer,JSONPath=`.status.addresses.forwarded`
// +kubebuilder:printcolumn:name="Announced",type=integer,JSONPath=`.status.addresses.announced`
// +kubebuilder:printcolumn:name="Attention",type=integer,JSONPath=`.status.attention`
// +kubebuilder:printcolumn:name="Changed",type=date,JSONPath=`.status.changed`
type SpeakerStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status SpeakerReport `json:"status,omitzero"`
}

// SpeakerStatusList is a list of SpeakerStatuses.
//
// +kubebuilder:object:root=true
type SpeakerStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpeakerStatus `json:"items"`
}
