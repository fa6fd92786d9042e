package counterparts

// A Field is a field of MetalLB's objects and what becomes of it.
type Field struct {
	Kind, Version string
	Path          string // below spec; the fields of a list's items with []
	Counterpart   string // the field of Fanfare's object; empty: none
	How           string // what differs, or what to do; empty: the value is the same
}

// Fields are all fields of the specs of MetalLB 0.16, in the order of its objects. Selectors have no rows of
// their own for what is in them: they are Kubernetes' selectors on both sides.
var Fields = []Field{
	{"IPAddressPool", "v1beta1", "addresses", "AddressPool addresses", "host bits of a CIDR are removed; MetalLB ignores them"},
	{"IPAddressPool", "v1beta1", "autoAssign", "AddressPool allocation", "false is OnRequest, true Automatic"},
	{"IPAddressPool", "v1beta1", "avoidBuggyIPs", "AddressPool avoidBuggyIPs", ""},
	{"IPAddressPool", "v1beta1", "serviceAllocation", "AddressPool priority", "the pool comes before pools without serviceAllocation"},
	{"IPAddressPool", "v1beta1", "serviceAllocation.priority", "AddressPool priority", "inverted: in MetalLB the lowest comes first and 0 last, in Fanfare the highest comes first"},
	{"IPAddressPool", "v1beta1", "serviceAllocation.namespaces", "AddressPool namespaces", "in namespaceSelector if there are namespaceSelectors, too"},
	{"IPAddressPool", "v1beta1", "serviceAllocation.namespaceSelectors", "AddressPool namespaceSelector", "one selector, or else the namespaces that match today"},
	{"IPAddressPool", "v1beta1", "serviceAllocation.serviceSelectors", "AddressPool serviceSelector", "one selector, or else the label fanfare.io/pool, with the commands that set it"},

	{"BGPPeer", "v1beta2", "myASN", "BGPPeer myASN", ""},
	{"BGPPeer", "v1beta2", "peerASN", "BGPPeer peerASN", ""},
	{"BGPPeer", "v1beta2", "dynamicASN", "BGPPeer peerASN", "internal or external in the place of a number"},
	{"BGPPeer", "v1beta2", "localASN", "BGPPeer localASN", ""},
	{"BGPPeer", "v1beta2", "peerAddress", "BGPPeer peerAddress", ""},
	{"BGPPeer", "v1beta2", "interface", "BGPPeer interface", ""},
	{"BGPPeer", "v1beta2", "sourceAddress", "BGPPeer sourceAddress", ""},
	{"BGPPeer", "v1beta2", "peerPort", "BGPPeer peerPort", ""},
	{"BGPPeer", "v1beta2", "holdTime", "BGPPeer holdTime", "in whole seconds; 0 (never time out) becomes 90s"},
	{"BGPPeer", "v1beta2", "keepaliveTime", "BGPPeer keepaliveTime", "without holdTime, that is three times as long, as in MetalLB"},
	{"BGPPeer", "v1beta2", "connectTime", "BGPPeer connectTime", ""},
	{"BGPPeer", "v1beta2", "routerID", "BGPPeer routerID", ""},
	{"BGPPeer", "v1beta2", "nodeSelectors", "BGPPeer nodeSelector", "one selector, or several BGPPeers of which at most one selects any node"},
	{"BGPPeer", "v1beta2", "password", "BGPPeer passwordSecretRef", "a Secret in the namespace of Fanfare's speakers, which you create; the password is not printed"},
	{"BGPPeer", "v1beta2", "passwordSecret", "BGPPeer passwordSecretRef", "copy the Secret to the namespace of Fanfare's speakers"},
	{"BGPPeer", "v1beta2", "passwordSecret.name", "BGPPeer passwordSecretRef.name", ""},
	{"BGPPeer", "v1beta2", "passwordSecret.namespace", "", "each speaker reads Secrets of its own namespace only"},
	{"BGPPeer", "v1beta2", "bfdProfile", "BGPPeer bfd", "the profile's fields are in the BGPPeer; not with ebgpMultiHop"},
	{"BGPPeer", "v1beta2", "enableGracefulRestart", "BGPPeer gracefulRestart", "always on, unless you set gracefulRestart.enabled: false"},
	{"BGPPeer", "v1beta2", "ebgpMultiHop", "BGPPeer ebgpMultihopTTL", "255; set the number of hops"},
	{"BGPPeer", "v1beta2", "vrf", "BGPPeer device", ""},
	{"BGPPeer", "v1beta2", "disableMP", "", "each session offers both families, and the router activates what it wants"},
	{"BGPPeer", "v1beta2", "dualStackAddressFamily", "", "as disableMP"},

	{"BGPPeer", "v1beta1", "myASN", "BGPPeer myASN", ""},
	{"BGPPeer", "v1beta1", "peerASN", "BGPPeer peerASN", ""},
	{"BGPPeer", "v1beta1", "peerAddress", "BGPPeer peerAddress", ""},
	{"BGPPeer", "v1beta1", "sourceAddress", "BGPPeer sourceAddress", ""},
	{"BGPPeer", "v1beta1", "peerPort", "BGPPeer peerPort", ""},
	{"BGPPeer", "v1beta1", "holdTime", "BGPPeer holdTime", "in whole seconds"},
	{"BGPPeer", "v1beta1", "keepaliveTime", "BGPPeer keepaliveTime", "as in v1beta2"},
	{"BGPPeer", "v1beta1", "routerID", "BGPPeer routerID", ""},
	{"BGPPeer", "v1beta1", "nodeSelectors", "BGPPeer nodeSelector", "as in v1beta2"},
	{"BGPPeer", "v1beta1", "password", "BGPPeer passwordSecretRef", "as in v1beta2"},
	{"BGPPeer", "v1beta1", "bfdProfile", "BGPPeer bfd", "as in v1beta2"},
	{"BGPPeer", "v1beta1", "ebgpMultiHop", "BGPPeer ebgpMultihopTTL", "255; set the number of hops"},

	{"BGPAdvertisement", "v1beta1", "aggregationLength", "BGPAdvertisement aggregationLength", "Services with externalTrafficPolicy Local keep routes of their own"},
	{"BGPAdvertisement", "v1beta1", "aggregationLengthV6", "BGPAdvertisement aggregationLengthV6", "the same"},
	{"BGPAdvertisement", "v1beta1", "localPref", "BGPAdvertisement localPref", "0 is unset"},
	{"BGPAdvertisement", "v1beta1", "communities", "BGPAdvertisement communities", "names of a Community become their values"},
	{"BGPAdvertisement", "v1beta1", "ipAddressPools", "BGPAdvertisement pools", ""},
	{"BGPAdvertisement", "v1beta1", "ipAddressPoolSelectors", "BGPAdvertisement pools", "the names of the pools that match today"},
	{"BGPAdvertisement", "v1beta1", "nodeSelectors", "BGPAdvertisement nodeSelector", "one selector, or several BGPAdvertisements"},
	{"BGPAdvertisement", "v1beta1", "peers", "BGPAdvertisement peers", ""},
	{"BGPAdvertisement", "v1beta1", "serviceSelectors", "BGPAdvertisement serviceSelector", "one selector, or several BGPAdvertisements"},

	{"L2Advertisement", "v1beta1", "ipAddressPools", "L2Advertisement pools", ""},
	{"L2Advertisement", "v1beta1", "ipAddressPoolSelectors", "L2Advertisement pools", "the names of the pools that match today"},
	{"L2Advertisement", "v1beta1", "nodeSelectors", "L2Advertisement nodeSelector", "one selector, or several L2Advertisements"},
	{"L2Advertisement", "v1beta1", "interfaces", "L2Advertisement interfaces", "unset: the interfaces with the address's subnet, not all"},
	{"L2Advertisement", "v1beta1", "serviceSelectors", "L2Advertisement serviceSelector", "one selector, or several L2Advertisements"},

	{"BFDProfile", "v1beta1", "receiveInterval", "BGPPeer bfd.receiveInterval", "with a unit"},
	{"BFDProfile", "v1beta1", "transmitInterval", "BGPPeer bfd.transmitInterval", "with a unit"},
	{"BFDProfile", "v1beta1", "detectMultiplier", "BGPPeer bfd.detectMultiplier", ""},
	{"BFDProfile", "v1beta1", "echoInterval", "", "no echo mode; control packets detect failures"},
	{"BFDProfile", "v1beta1", "echoMode", "", "no echo mode; control packets detect failures"},
	{"BFDProfile", "v1beta1", "passiveMode", "BGPPeer bfd.passive", ""},
	{"BFDProfile", "v1beta1", "minimumTtl", "", "BFD is with directly connected routers only"},

	{"Community", "v1beta1", "communities", "BGPAdvertisement communities", "the values are in the advertisements that name them"},
	{"Community", "v1beta1", "communities[].name", "BGPAdvertisement communities", "replaced by the value"},
	{"Community", "v1beta1", "communities[].value", "BGPAdvertisement communities", ""},
}
