package metallb

import (
	"cmp"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Object is an object of MetalLB with the spec S. Its status says nothing that a migration needs.
type Object[S any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              S   `json:"spec"`
	Status            any `json:"status,omitempty"`
}

// The kinds that are converted.
type (
	IPAddressPool    = Object[IPAddressPoolSpec]
	BGPPeer          = Object[BGPPeerSpec]
	BGPAdvertisement = Object[BGPAdvertisementSpec]
	L2Advertisement  = Object[L2AdvertisementSpec]
	BFDProfile       = Object[BFDProfileSpec]
	Community        = Object[CommunitySpec]
)

// IPAddressPoolSpec is a set of addresses and the Services that may get them.
type IPAddressPoolSpec struct {
	Addresses         []string           `json:"addresses"`               // CIDRs and ranges
	AutoAssign        *bool              `json:"autoAssign,omitempty"`    // nil: true
	AvoidBuggyIPs     bool               `json:"avoidBuggyIPs,omitempty"` // leave out .0 and .255
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`
}

// ServiceAllocation restricts a pool to Services that are in one of the namespaces and match one of
// the serviceSelectors.
type ServiceAllocation struct {
	Priority           int                    `json:"priority,omitempty"` // the lowest first, 0 last
	Namespaces         []string               `json:"namespaces,omitempty"`
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"` // more namespaces
	ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors,omitempty"`
}

// BGPPeerSpec is a router, as of v1beta2.
type BGPPeerSpec struct {
	MyASN                  uint32                 `json:"myASN"`
	PeerASN                uint32                 `json:"peerASN,omitempty"`
	LocalASN               uint32                 `json:"localASN,omitempty"`
	DynamicASN             string                 `json:"dynamicASN,omitempty"` // internal or external
	PeerAddress            string                 `json:"peerAddress,omitempty"`
	Interface              string                 `json:"interface,omitempty"`
	SourceAddress          string                 `json:"sourceAddress,omitempty"`
	PeerPort               uint16                 `json:"peerPort,omitempty"` // 0: 179
	HoldTime               *metav1.Duration       `json:"holdTime,omitempty"`
	KeepaliveTime          *metav1.Duration       `json:"keepaliveTime,omitempty"`
	ConnectTime            *metav1.Duration       `json:"connectTime,omitempty"`
	RouterID               string                 `json:"routerID,omitempty"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors,omitempty"` // any of them
	Password               string                 `json:"password,omitempty"`
	PasswordSecret         SecretReference        `json:"passwordSecret,omitzero"`
	BFDProfile             string                 `json:"bfdProfile,omitempty"`
	EnableGracefulRestart  bool                   `json:"enableGracefulRestart,omitempty"`
	EBGPMultiHop           bool                   `json:"ebgpMultiHop,omitempty"`
	VRF                    string                 `json:"vrf,omitempty"`
	DisableMP              bool                   `json:"disableMP,omitempty"`
	DualStackAddressFamily bool                   `json:"dualStackAddressFamily,omitempty"`
}

// A SecretReference names a Secret, in MetalLB's own namespace.
type SecretReference struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// bgpPeerV1beta1Spec is a router as of v1beta1, which has fewer fields and other types.
type bgpPeerV1beta1Spec struct {
	MyASN         uint32                 `json:"myASN"`
	PeerASN       uint32                 `json:"peerASN"`
	PeerAddress   string                 `json:"peerAddress"`
	SourceAddress string                 `json:"sourceAddress,omitempty"`
	PeerPort      uint16                 `json:"peerPort,omitempty"`
	HoldTime      metav1.Duration        `json:"holdTime,omitzero"`
	KeepaliveTime metav1.Duration        `json:"keepaliveTime,omitzero"`
	RouterID      string                 `json:"routerID,omitempty"`
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`
	Password      string                 `json:"password,omitempty"`
	BFDProfile    string                 `json:"bfdProfile,omitempty"`
	EBGPMultiHop  bool                   `json:"ebgpMultiHop,omitempty"`
}

// current returns the spec as of v1beta2, which has all its fields. A time of 0 is not set.
func (s bgpPeerV1beta1Spec) current() (spec BGPPeerSpec) {
	j, err := json.Marshal(s)
	if err = cmp.Or(err, json.Unmarshal(j, &spec)); err != nil {
		panic("BUG: " + err.Error())
	}
	return spec
}

// BGPAdvertisementSpec announces addresses of pools over BGP.
type BGPAdvertisementSpec struct {
	AggregationLength   *int32   `json:"aggregationLength,omitempty"`   // nil: 32
	AggregationLengthV6 *int32   `json:"aggregationLengthV6,omitempty"` // nil: 128
	LocalPref           uint32   `json:"localPref,omitempty"`           // 0: none
	Communities         []string `json:"communities,omitempty"`         // values, or names of a Community
	Peers               []string `json:"peers,omitempty"`
	Selection
}

// L2AdvertisementSpec announces addresses of pools by ARP and NDP.
type L2AdvertisementSpec struct {
	Interfaces []string `json:"interfaces,omitempty"`
	Selection
}

// A Selection is what an advertisement is about, of either kind.
type Selection struct {
	IPAddressPools         []string               `json:"ipAddressPools,omitempty"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors,omitempty"` // more pools
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors,omitempty"`          // any of them
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors,omitempty"`       // any of them
}

// BFDProfileSpec has the settings of BFD sessions. Intervals are in milliseconds.
type BFDProfileSpec struct {
	ReceiveInterval  *uint32 `json:"receiveInterval,omitempty"`  // nil: 300
	TransmitInterval *uint32 `json:"transmitInterval,omitempty"` // nil: 300
	DetectMultiplier *uint32 `json:"detectMultiplier,omitempty"` // nil: 3
	EchoInterval     *uint32 `json:"echoInterval,omitempty"`
	EchoMode         *bool   `json:"echoMode,omitempty"`
	PassiveMode      *bool   `json:"passiveMode,omitempty"`
	MinimumTTL       *uint32 `json:"minimumTtl,omitempty"`
}

// CommunitySpec gives communities names.
type CommunitySpec struct {
	Communities []CommunityAlias `json:"communities,omitempty"`
}

// A CommunityAlias is a name for 64500:1 or large:64500:1:2.
type CommunityAlias struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
}
