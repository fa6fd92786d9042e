package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BGPPeerSpec is the configuration of a router. Times are written as 90s, 3m or
// 1m30s, in whole seconds, the unit of BGP's timers.
//
// +kubebuilder:validation:XValidation:rule="self.peerASN != (has(self.localASN) ? self.localASN : self.myASN) || !has(self.ebgpMultihopTTL)",message="ebgpMultihopTTL is for eBGP, and this peer has our own AS number: remove it",fieldPath=".ebgpMultihopTTL"
// +kubebuilder:validation:XValidation:rule="self.peerASN != 'internal' || !has(self.ebgpMultihopTTL)",message="ebgpMultihopTTL is for eBGP, and this peer is internal: remove it",fieldPath=".ebgpMultihopTTL"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurityHops) || !has(self.ebgpMultihopTTL)",message="ttlSecurityHops says itself how far away the router may be: remove it or ebgpMultihopTTL",fieldPath=".ttlSecurityHops"
// +kubebuilder:validation:XValidation:rule="!has(self.bfd) || (!has(self.ebgpMultihopTTL) || self.ebgpMultihopTTL == 1) && (!has(self.ttlSecurityHops) || self.ttlSecurityHops == 1)",message="bfd is for a router that is directly connected (RFC 5881): remove it, or the number of hops",fieldPath=".bfd"
// +kubebuilder:validation:XValidation:rule="[has(self.peerAddress), has(self.defaultGateway), has(self.interface)].filter(given, given).size() == 1",message="name the router by one of peerAddress, defaultGateway and interface"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.defaultGateway) || !isIP(self.sourceAddress) || ip(self.sourceAddress).family() == (self.defaultGateway == 'IPv4' ? 4 : 6)",message="sourceAddress must be of defaultGateway's address family",fieldPath=".sourceAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || duration(self.keepaliveTime) < (has(self.holdTime) ? duration(self.holdTime) : duration('90s'))",message="keepaliveTime must be less than holdTime (90s when unset); a third of it is usual",fieldPath=".keepaliveTime"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.peerAddress) || !isIP(self.sourceAddress) || !isIP(self.peerAddress.split('%')[0]) || ip(self.sourceAddress).family() == ip(self.peerAddress.split('%')[0]).family()",message="sourceAddress must be of peerAddress's address family",fieldPath=".sourceAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.interface) || !has(self.sourceAddress)",message="with interface our end is its link-local address: remove sourceAddress",fieldPath=".sourceAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.interface) || !has(self.passive) || !self.passive",message="a passive session needs the router's address: remove passive, or name peerAddress instead of interface",fieldPath=".passive"
// +kubebuilder:validation:XValidation:rule="!has(self.interface) || !has(self.ebgpMultihopTTL) || self.ebgpMultihopTTL == 1",message="with interface the router is on the link: remove ebgpMultihopTTL",fieldPath=".ebgpMultihopTTL"
type BGPPeerSpec struct {
	// PeerAddress is the router's address. A link-local IPv6 address needs the
	// interface, as in fe80::1%eth0.
	//
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.contains('%') ? self.split('%').size() == 2 && self.split('%')[1].matches('^[^ /%:]{1,15}$') && isIP(self.split('%')[0]) && ip(self.split('%')[0]).family() == 6 && ip(self.split('%')[0]).isLinkLocalUnicast() : isIP(self) && !(ip(self).family() == 6 && ip(self).isLinkLocalUnicast())",message="must be an address such as 192.0.2.1; a link-local IPv6 address, and no other, needs its interface, as in fe80::1%eth0"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || !ip(self).isUnspecified() && self != '255.255.255.255' && ['224.0.0.0/4', 'ff00::/8'].all(r, !cidr(r).containsIP(self))",message="must be the address of one router, and not unspecified, multicast or broadcast"
	PeerAddress string `json:"peerAddress,omitempty"`

	// DefaultGateway, in place of peerAddress, is an address family: the router is the
	// node's default gateway of that family. If the gateway changes, the session moves
	// to the new one. One object can configure all racks, each with its own router.
	//
	// +optional
	// +kubebuilder:validation:Enum=IPv4;IPv6
	DefaultGateway corev1.IPFamily `json:"defaultGateway,omitempty"`

	// Interface, in place of peerAddress, is the node's end of a link to the router
	// without configured addresses (unnumbered): both ends find each other by router
	// advertisements, and routes of both families use their link-local addresses (RFC
	// 8950). In FRR: neighbor swp1 interface remote-as external.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ /%:]+$') && !self.matches('^[0-9.]+$')",message="must be the name of an interface such as eth1, of 15 characters at most"
	Interface string `json:"interface,omitempty"`

	// PeerPort is the router's TCP port.
	//
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// PeerASN is the router's AS number, or a word: internal for iBGP, with the same
	// number on both ends, or external for any other number than the node's.
	//
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 4294967295 : self in ['internal', 'external']",message="must be a number from 1 to 4294967295, or internal or external"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self != 23456",message="is AS_TRANS, which routers without 4-byte AS numbers see in place of a larger one (RFC 6793); write the real AS number"
	PeerASN PeerASN `json:"peerASN"`

	// MyASN is the node's AS number in this session.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="is AS_TRANS, which routers without 4-byte AS numbers see in place of a larger one (RFC 6793); write the real AS number"
	MyASN int64 `json:"myASN"`

	// LocalASN replaces myASN if this router expects another number, for example while
	// a network is renumbered. The AS path has only this number.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="is AS_TRANS, which routers without 4-byte AS numbers see in place of a larger one (RFC 6793); write the real AS number"
	LocalASN int64 `json:"localASN,omitempty"`

	// SourceAddress is the node's end of the session: an address, or the name of an
	// interface that has one, so that one object can configure all nodes. Of several
	// addresses of an interface, the node uses the one in the router's network,
	// otherwise the first. The kernel chooses when it is unset. An address belongs to
	// one node, so select that node with nodeSelector.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^[^ /%:]{1,15}$') && !self.matches('^[0-9.]+$')",message="must be an address such as 192.0.2.7, or the name of an interface, of 15 characters at most"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// Device is the interface or the VRF to which the session is bound. The node's
	// routes decide when it is unset.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ /%:]+$')",message="must be the name of an interface or a VRF such as eth0, of 15 characters at most"
	Device string `json:"device,omitempty"`

	// Passive makes the node wait for the router to connect to TCP port 179, and never
	// connect itself. Only this router can connect; while no peer is passive, a node
	// does not listen. peerPort then has no effect.
	//
	// +optional
	Passive bool `json:"passive,omitempty"`

	// RouterID is the node's BGP identifier, written as an IPv4 address and unique in
	// the network. The node's IPv4 address when unset.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4 && self != '0.0.0.0'",message="must be written as an IPv4 address such as 192.0.2.7, and not 0.0.0.0"
	RouterID string `json:"routerID,omitempty"`

	// HoldTime is the time after which the session closes if no message arrives from
	// the router; at least 3s, 90s when unset. The lower value of both ends applies
	// (RFC 4271).
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+h)?([0-9]+m)?([0-9]+s)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="must be from 3s to 65535s, in whole seconds"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime is the interval of KEEPALIVE messages. A third of holdTime when
	// unset.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+h)?([0-9]+m)?([0-9]+s)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('65535s')",message="must be from 1s to 65535s, in whole seconds"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectTime is the time between two attempts to connect. 5s when unset.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+h)?([0-9]+m)?([0-9]+s)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('65535s')",message="must be from 1s to 65535s, in whole seconds"
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`

	// EBGPMultihopTTL is the TTL of packets to an eBGP router that is more than one hop
	// away. When it is unset, the router must be directly connected.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	EBGPMultihopTTL int32 `json:"ebgpMultihopTTL,omitempty"`

	// TTLSecurityHops drops packets from more hops away, so that remote hosts cannot
	// disturb the session (GTSM, RFC 5082): 1 for a directly connected router. The
	// router must do the same: in FRR, neighbor NODE ttl-security hops 1.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurityHops int32 `json:"ttlSecurityHops,omitempty"`

	// PasswordSecretRef names the Secret with the password of the session (TCP MD5
	// signatures, RFC 2385). No password when unset.
	//
	// +optional
	PasswordSecretRef *PasswordSecretRef `json:"passwordSecretRef,omitempty"`

	// BFD detects within milliseconds that packets of the router no longer arrive, and
	// lets the router detect the same of the node (RFC 5880). Off when unset; the
	// router must enable it, too.
	//
	// +optional
	BFD *BFD `json:"bfd,omitempty"`

	// NodeSelector selects the nodes that have a session with this router. All nodes
	// when it is unset.
	//
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`

	// GracefulRestart says whether the router should keep the node's routes while
	// the speaker restarts (RFC 4724). The kernel continues to forward.
	//
	// +optional
	GracefulRestart *GracefulRestart `json:"gracefulRestart,omitempty"`

	// WeightByEndpoints announces how many pods of a Service with externalTrafficPolicy
	// Local each node has, as link bandwidth (RFC 10005), so that the router balances
	// connections by pods and not by nodes. All nodes must announce it. Each change of
	// such a number moves some connections to other nodes, which reset them. A change
	// of this field does not reset the session.
	//
	// +optional
	WeightByEndpoints bool `json:"weightByEndpoints,omitempty"`
}

// PasswordSecretRef names a Secret of type kubernetes.io/basic-auth in the namespace of the
// speakers, such as fanfare-system, whose key password is used. A role must let speakers read it. Changing
// it resets the session.
type PasswordSecretRef struct {
	// Name of the Secret.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Secret in the namespace of the speakers"
	Name string `json:"name"`
}

// BFD has the intervals of BFD with a directly connected router (RFC 5881). Changing it
// resets the session.
type BFD struct {
	// TransmitInterval is the interval at which the node sends. The router's receive
	// interval applies if it is longer. 300ms when unset.
	//
	// +optional
	// +kubebuilder:default="300ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+s)?([0-9]+ms)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be from 10ms to 60s"
	TransmitInterval *metav1.Duration `json:"transmitInterval,omitempty"`

	// ReceiveInterval is the shortest interval at which the router may send. 300ms when
	// unset.
	//
	// +optional
	// +kubebuilder:default="300ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+s)?([0-9]+ms)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be from 10ms to 60s"
	ReceiveInterval *metav1.Duration `json:"receiveInterval,omitempty"`

	// DetectMultiplier is the number of consecutive packets of the node that must be
	// lost before the router closes the session. The router's own multiplier applies in
	// the other direction. 3 when unset.
	//
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=255
	DetectMultiplier int32 `json:"detectMultiplier,omitempty"`

	// Passive makes the node wait for the router's first packet before it sends.
	//
	// +optional
	Passive bool `json:"passive,omitempty"`
}

// GracefulRestart is what the node requests from a router for a restart of the speaker.
type GracefulRestart struct {
	// Enabled asks the router to keep the node's routes.
	//
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// RestartTime is how long the router keeps the routes of a speaker that does not
	// return. 30s when unset.
	//
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+h)?([0-9]+m)?([0-9]+s)?$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('4095s')",message="must be from 2s to 4095s, in whole seconds (RFC 4724 has 12 bits for it)"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// BGPPeer is a router to announce addresses to.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fanfare
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.peerAddress`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.interface`
// +kubebuilder:printcolumn:name="ASN",type=string,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="My ASN",type=integer,JSONPath=`.spec.myASN`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the address of the router and the settings of its session.
	//
	// +required
	Spec BGPPeerSpec `json:"spec"`
}

// BGPPeerList is a list of BGPPeers.
//
// +kubebuilder:object:root=true
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPPeer `json:"items"`
}
