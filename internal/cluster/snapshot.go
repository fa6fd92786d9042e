package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A Snapshot is the cluster as Fanfare sees it at one instant.
//
// It is immutable. Slices are sorted by name, so that two snapshots of equal objects are equal,
// regardless of the order in which the objects arrived.
type Snapshot struct {
	// Services are the Services of type LoadBalancer. Package watch writes them to disk one by one.
	Services Services `json:"-"`
	Nodes    []*Node
	// AllNodes says that Nodes has all Nodes: a speaker that uses only BGP watches just its own
	// Node.
	AllNodes bool
	Pools    []*Pool
	Peers    []*Peer
	// Advertisements specify how pools are announced over BGP.
	Advertisements []*Advertisement
	// L2Advertisements specify which addresses nodes answer for by ARP and NDP.
	L2Advertisements []*L2Advertisement
	// L2Ready says that everything is read that decides which node answers by ARP and NDP: a
	// speaker in a cluster that uses only BGP watches just its own Node.
	L2Ready bool
	// Speakers have the interfaces of nodes. Only controllers read them.
	Speakers []*Speaker
	// Conflicts are the addresses that other hosts use, as Speakers report; sorted.
	Conflicts []Conflict
	// Namespaces are the ones with known labels. Only controllers read them, and ServiceCIDRs.
	Namespaces []*Namespace
	// ServiceCIDRs are the ranges of ClusterIPs.
	ServiceCIDRs []*ServiceCIDR
	// Occupied are the addresses that nodes, pods, routers and ServiceCIDRs are known to use,
	// sorted and not overlapping.
	Occupied []Occupied
	// Claims is empty without an API server. Package watch writes them to disk one by one.
	Claims Claims `json:"-"`

	// Assignments say which Service holds which address, sorted by address, then Service. Parse
	// fills them from the Services' status; without an API server internal/ipam adds the rest. An
	// unchanged set is that of the previous snapshot.
	Assignments Assignments `json:"-"`
	// Unclaimed are the addresses in the status of Services without a Claim, sorted: another
	// implementation serves them, or the controller has yet to claim them. Only speakers of a
	// cluster with a controller read them.
	Unclaimed []netip.Addr
	// Refusals say why Services hold no address, or fewer than they requested; sorted by Service.
	Refusals []Reason
	// Configuration has the last valid versions of objects. The pointer stays the same until one
	// changes.
	Configuration *Configuration `json:"-"`
	// Problems are the objects that did not parse, parsed only in part, or refer to something that
	// does not exist.
	Problems []Problem
	// Unserved are the Services that are not served although something suggests that they should be, and EndpointSlices
	// without a Service, each with the reason; only with Scope.Unserved.
	Unserved []string `json:"-"`
	// Versions are the versions of all AddressPools, BGPPeers and advertisements, even if they did
	// not parse; sorted by kind and name.
	Versions []Version
}

// Service returns a Service, nil if it does not exist.
func (s *Snapshot) Service(name Name) *Spec {
	svc, _ := s.Services.Get(name)
	return svc.Spec
}

// Node returns a Node, nil if it does not exist.
func (s *Snapshot) Node(name string) *Node { return NodeOf(s.Nodes, name) }

// NodeOf returns a node in a list that is sorted by name; nil if it is not in the list.
func NodeOf(all []*Node, name string) *Node {
	return find(all, name, func(n *Node, name string) int { return strings.Compare(n.Name, name) })
}

// Speaker returns the report of a node's speaker, nil if there is none yet.
func (s *Snapshot) Speaker(node string) *Speaker {
	return find(s.Speakers, node, func(s *Speaker, name string) int { return strings.Compare(s.Node, name) })
}

// Claim returns the Claim of an address, nil if there is none.
func (s *Snapshot) Claim(addr netip.Addr) *Claim {
	c, _ := s.Claims.Get(addr)
	return c
}

// Conflict returns the report about a host that uses an address; ok is false without a report.
func (s *Snapshot) Conflict(addr netip.Addr) (c Conflict, ok bool) {
	c = find(s.Conflicts, addr, Conflict.compareAddr)
	return c, c.Addr.IsValid()
}

// AssignmentsOf returns the Assignments of an address, more than one if Services share it.
func (s *Snapshot) AssignmentsOf(addr netip.Addr) []Assignment {
	return sortedset.GetAll(s.Assignments.Set, addr, func(a Assignment, b netip.Addr) int { return a.Addr.Compare(b) })
}

// find returns the element with a key in a list that is sorted by key; zero if there is none.
func find[T, K any](sorted []T, key K, compare func(T, K) int) (found T) {
	if i, ok := slices.BinarySearchFunc(sorted, key, compare); ok {
		found = sorted[i]
	}
	return found
}

// A Service is a LoadBalancer Service and its endpoints, which change at very different rates. Both
// are immutable and shared between snapshots, so == between two Services shows whether anything
// changed.
type Service struct {
	*Spec
	// Endpoints is nil if the Service has no EndpointSlice.
	Endpoints *Endpoints
}

// A Spec is the content of a Service's own object.
type Spec struct {
	Name    Name
	UID     types.UID // empty if the object did not come from an API server
	Created time.Time // zero if the object has no creationTimestamp
	// Deleting: the object has a deletionTimestamp, and finalizers keep it.
	Deleting bool
	Class    string // spec.loadBalancerClass, empty when unset
	Labels   labels.Set
	Ports    []Port // in the object's order

	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	IPFamilies            []corev1.IPFamily // never empty
	IPFamilyPolicy        corev1.IPFamilyPolicy

	// HealthCheckPort is spec.healthCheckNodePort, zero if there is none: only Services with the
	// external policy Local have one.
	HealthCheckPort uint16
	// ServiceProxy is the label service.kubernetes.io/service-proxy-name, which makes kube-proxy
	// ignore the Service; empty without the label.
	ServiceProxy string

	// PublishNotReady counts endpoints as ready, regardless of their condition.
	PublishNotReady bool

	// Restricted says that only clients in Sources may use the Service; if Sources is empty, no
	// client may. Sources are sorted and do not overlap, IPv4 first.
	Restricted bool
	Sources    []netip.Prefix
	// Affinity is how long a client gets the same endpoint, 1 s to 24 h; zero: each flow is
	// scheduled separately.
	Affinity time.Duration
	// Scheduler is one of the Scheduler constants.
	Scheduler string
	// Communities are added to the routes of its addresses, nil for none.
	Communities *Communities
	// L2Node is the node that should answer for its addresses by ARP and NDP while it can; empty
	// for any.
	L2Node string

	// Requested are the addresses that the Service requests by annotation or spec.loadBalancerIP,
	// sorted. Some may be host parts, see [IsHostPart].
	Requested []netip.Addr
	// RequestedPools are the pools requested by annotation, in the order of preference.
	RequestedPools []string
	// Sharing is nil if the Service shares its addresses with no other.
	Sharing *Sharing
	// Reserve says that its addresses stay reserved when it is deleted.
	Reserve bool
	// Problems are what is wrong with the Service, each with a Code, and without its Object. A Service
	// with the Code [RequestRefused] gets no other address: it would lose that one when the request
	// is corrected.
	Problems Problems `json:"-"` // A speaker reads none of a saved state.

	// Status are the addresses of status.loadBalancer.ingress.
	Status []netip.Addr
	// StatusHost is a host name in the status, empty if there is none. Another controller wrote it.
	StatusHost string
	// StatusProxied says that an address in the status has ipMode Proxy: nodes send its traffic to
	// a load balancer instead of to pods. Fanfare's addresses never have it.
	StatusProxied bool
	// Reported is the condition that the controller last wrote into the Service's status.
	Reported AddressCondition
}

// An AddressCondition is the condition [AddressAssigned] of a Service; zero if the Service has
// none.
type AddressCondition struct {
	Assigned bool // the condition's status is True
	Code     Code
	Message  string
}

// Addrs returns the addresses that the message says the Service has. The controller writes it with
// the status, and another controller that overwrites the addresses leaves it. It begins with them: what follows
// may have values of annotations, in which a tenant could say so of any address.
func (c AddressCondition) Addrs() (addrs []netip.Addr) {
	for clause := range strings.SplitSeq(c.Message, "; ") {
		text, has := strings.CutPrefix(clause, "has ")
		text, _, _ = strings.Cut(text, " ")
		a, err := netip.ParseAddr(text)
		if !has || err != nil {
			break
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// AddressAssigned is the type of the condition in which the controller writes whether a Service has
// an address, and why not.
const AddressAssigned = "fanfare.io/AddressAssigned"

// status returns the addresses of the object's status; s may be nil.
func (s *Spec) status() []netip.Addr {
	if s == nil {
		return nil
	}
	return s.Status
}

// A Port is one port of a Service. Its Name relates it to the endpoints' ports.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
	Target   uint16 // of a Service: the number in the pods, 0 if it has their name for it
}

// Endpoints are the endpoints of one Service from all of its EndpointSlices. Ports and endpoints
// stay apart until a port is served: their product may be huge.
type Endpoints struct {
	// Subsets have different Ports. Several may have the same endpoint.
	Subsets []Subset
	// Targets is how many endpoints all ports have together, 2^20 at most: with more, Subsets is empty.
	Targets int

	// The rest is for Reasons, the first ones of each.

	Others    []Port       // ports of slices that the Service has not, sorted
	Renamed   []PortRename // ports that slices have under another name, sorted
	Refused   []netip.Addr // endpoints that are not used since the addresses are for Services, sorted
	HostNames bool         // a slice has addressType FQDN
}

// A Subset is ports, each of which all of its endpoints serve.
type Subset struct {
	// Ports are those of the Service, with the numbers in the pods; sorted by name and protocol. If
	// the Service has none of the slices' ports, there are none, and only health checks count the
	// endpoints.
	Ports []Port
	List  []Endpoint // sorted by address, without duplicates
}

// A PortRename is a port of a Service that an EndpointSlice has under another Name: one of the two is
// late.
type PortRename struct {
	Port Port
	Name string
}

// An Endpoint is the address of a pod, with its state.
type Endpoint struct {
	Addr netip.Addr
	Port uint16 // only in a [PortGroup] whose endpoints have different numbers
	Node string // empty when the slice does not say

	// The conditions of discovery/v1, with their documented defaults for
	// absent values (ready and serving: true; terminating: false).
	Ready, Serving, Terminating bool

	// The topology hints of discovery/v1: the clients that this endpoint is for.
	ForZones, ForNodes Hint
}

// A Hint is a set of names, sorted and joined by commas, which names cannot contain, so that
// Endpoints are comparable; empty without a hint.
type Hint string

// Has reports whether name is one of the names.
func (h Hint) Has(name string) bool {
	for len(h) > 0 {
		first, rest, _ := strings.Cut(string(h), ",")
		if first == name {
			return true
		}
		h = Hint(rest)
	}
	return false
}

// A Node has what Fanfare needs to know about a node.
type Node struct {
	Name        string
	UID         types.UID // empty if the object did not come from an API server
	Labels      labels.Set
	InternalIPs []netip.Addr   // status.addresses of type InternalIP
	PodCIDRs    []netip.Prefix // spec.podCIDRs; wrong under Calico's and Cilium's own IPAM

	// Excluded is set by the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded bool
	// Leaving names the taint which says that this node will be removed, empty if it stays. Cordon
	// alone does not count.
	Leaving string
	// NetworkUnavailable is the condition of that name.
	NetworkUnavailable bool
	// NotReady: the kubelet reports that the node is not Ready. Ready Unknown does not count: when
	// the API server is cut off, all nodes have it at once, and a speaker that reads it is alive.
	NotReady bool
	// ReadyUnknown: the kubelet does not report. That says little about one node while others
	// report, and nothing while most do not.
	ReadyUnknown bool
}

// A Pool is a set of addresses for Services.
type Pool struct {
	Name          string
	Created       time.Time        // zero when the object carries no creationTimestamp
	Ranges        []netipx.IPRange // in the object's order; none overlaps another, of this pool or of any
	Lost          []netipx.IPRange // of the object, but of other pools
	Announce      Announce
	Allocation    Allocation
	AvoidBuggyIPs bool  // do not give out .0 and .255 of IPv4
	Priority      int32 // the highest is tried first

	// Eligibility: only Services that match all three get addresses of the pool. Namespaces are
	// sorted; nil matches all, and empty matches none.
	Namespaces                         []string
	NamespaceSelector, ServiceSelector Selector
	// Quota is how many addresses of each family one namespace may have, 0 for any number.
	Quota int
	// ReservedQuota is how many addresses of each family stay reserved for deleted Services
	// of one namespace.
	ReservedQuota int
	// ServiceCommunities are the communities that Services may add to their routes, nil for none.
	ServiceCommunities *Communities
	// AllowL2Node: Services may name the node that answers for their addresses.
	AllowL2Node bool

	// Occupied are the addresses in Ranges that the cluster itself uses, sorted and not
	// overlapping. They keep their place in the pool and are not given out.
	Occupied []Occupied
}

// Occupied are addresses that Services cannot have.
type Occupied struct {
	Range netipx.IPRange
	By    string // the user, such as "Node node1" or "the pods of Node node1"
	// Foreign: another implementation has given the address to a Service.
	Foreign bool
}

// Announce says how addresses are announced; empty: not at all.
type Announce string

const (
	AnnounceBGP        Announce = "BGP"        // each address on its own, to every router that selects the node
	AnnounceL2         Announce = "L2"         // by ARP and NDP, on every interface in the address's subnet
	AnnounceAdvertised Announce = "Advertised" // as the advertisements that select the pool say
)

// An Origin is the pool that an address was allocated from, and how the pool
// announces its addresses.
type Origin struct {
	Pool     string
	Announce Announce
}

// Allocation says when addresses of a pool are given out.
type Allocation string

const (
	Automatic Allocation = "Automatic" // to any Service that needs one
	OnRequest Allocation = "OnRequest" // only to Services that name the pool or the address
	Drained   Allocation = "Drained"   // to none; assigned ones stay
)

// Contains reports whether addr belongs to the pool.
func (p *Pool) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r netipx.IPRange) bool { return r.Contains(addr) })
}

// PoolOf returns the name of the pool that contains addr, empty if none does.
func PoolOf(pools []*Pool, addr netip.Addr) string {
	for _, p := range pools {
		if p.Contains(addr) {
			return p.Name
		}
	}
	return ""
}

// A Peer is a BGP router, and the nodes that have a session with it.
type Peer struct {
	// Session has the content of the BGPPeer. PeerAddress is invalid with DefaultGateway, because
	// each node may have another router. LocalASN is MyASN, unless the router knows this node by
	// another number. Password is empty while the Secret cannot be read.
	bgp.Session
	UID     types.UID // empty when the object did not come from an API server
	Created time.Time // zero when the object carries no creationTimestamp
	// DefaultGateway is the family of the node's default gateway, if the router is that.
	DefaultGateway corev1.IPFamily
	MyASN          uint32 // never 0
	NodeSelector   Selector
	// Secret is the name of the Secret with the Password, empty without one.
	Secret string
}

// An Advertisement says how addresses are announced over BGP.
type Advertisement struct {
	Name string
	// Pools and Peers are sorted names; none: all.
	Pools, Peers                  []string
	ServiceSelector, NodeSelector Selector
	// Length4 and Length6 are the prefix lengths by which addresses are announced; 32 and 128: each
	// separately.
	Length4, Length6 int
	// Communities are added to the routes, nil for none.
	Communities *Communities
	// LocalPref, MED and Prepend are nil if the object does not set them.
	LocalPref, MED *uint32
	Prepend        *uint8 // at most 16
}

// A Claim says which Services hold an address. The API server stores at most one for each address.
type Claim struct {
	Addr     netip.Addr
	Pool     string   // the pool that the address was assigned from
	Announce Announce // of that pool, as the controller last saw it
	Holders  []Holder // sorted by name; none if it is only reserved
	Node     string   // the node that should answer for the address over L2, empty for any
	Reserved bool     // the claim stays when no Service holds the address
	// ReservedFor are the Services that the address is reserved for while none holds it, sorted. An
	// entry without a name stands for every Service of its namespace.
	ReservedFor []Name
	// Replaced counts the Service's earlier addresses that other hosts use.
	Replaced int32

	// Created is when the API server stored it; zero: unknown.
	Created time.Time
	// A write must name these, so that it changes no other version.
	UID             types.UID
	ResourceVersion string
}

// Name is the name of the claim's object.
func (c *Claim) Name() string { return v1alpha1.ClaimName(c.Addr) }

// A Holder is a Service that has an address.
type Holder struct {
	Name Name
	// UID distinguishes the Service from a later one of the same name. ResourceVersion is the
	// version that the address was assigned to. Either may be empty.
	UID             types.UID
	ResourceVersion string
	Reserve         bool // the address stays reserved for it when it is deleted
}

// OriginOf returns the origin of an address, and so how it is announced. After its pool has lost
// it, the pool's last known spec.announce applies.
func (s *Snapshot) OriginOf(a Assignment) Origin {
	if p := s.pool(a.Pool); p != nil {
		return Origin{p.Name, p.Announce}
	}
	return a.From
}

// pool returns a pool, nil if it does not exist.
func (s *Snapshot) pool(name string) *Pool { return PoolNamed(s.Pools, name) }

// PoolNamed returns a pool in a list that is sorted by name; nil if it is not in the list.
func PoolNamed(all []*Pool, name string) *Pool {
	return find(all, name, func(p *Pool, n string) int { return strings.Compare(p.Name, n) })
}

// UsesL2 reports whether an address may be announced by ARP and NDP.
func (s *Snapshot) UsesL2() bool {
	return len(s.L2Advertisements) > 0 || s.Assignments.overL2 > 0 ||
		slices.ContainsFunc(s.Pools, func(p *Pool) bool { return p.Announce == AnnounceL2 })
}

// interned returns the shared copy of s: many objects name the same namespace or node, and each
// brings its own copy.
func interned[S ~string](s S) S { return unique.Make(s).Value() }
