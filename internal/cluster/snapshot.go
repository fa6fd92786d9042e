package cluster

import (
	"cmp"
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
)

// A Snapshot is the cluster as Fanfare sees it at one instant.
//
// It is immutable. Slices are sorted by name, so that two snapshots of equal
// objects are equal, in whatever order the objects arrived.
type Snapshot struct {
	// Services are the Services of type LoadBalancer.
	Services []Service
	Nodes    []*Node
	// AllNodes says that Nodes are all Nodes: a speaker that only uses BGP watches its
	// own Node only.
	AllNodes bool
	Pools    []*Pool
	Peers    []*Peer
	// Advertisements refine how pools are announced over BGP.
	Advertisements []*Advertisement
	// L2Advertisements say what is answered for by ARP and NDP.
	L2Advertisements []*L2Advertisement
	// L2Ready says that all was read that decides which node answers by ARP and NDP: a
	// speaker of a cluster that only uses BGP watches its own Node only.
	L2Ready bool
	// Speakers say what interfaces nodes have. Only controllers read them.
	Speakers []*Speaker
	// Conflicts are the addresses that other hosts use, as Speakers report; sorted.
	Conflicts []Conflict
	// Namespaces are those whose labels are known. Only controllers read them, and
	// ServiceCIDRs.
	Namespaces []*Namespace
	// ServiceCIDRs are what the cluster's own addresses of Services come from.
	ServiceCIDRs []*ServiceCIDR
	// Occupied are the addresses that nodes, pods, routers and ServiceCIDRs are known to
	// have, sorted; none overlaps another.
	Occupied []Occupied
	// Claims are sorted by address. There are none without an API server.
	Claims []*Claim

	// Assignments say which Service holds which address, sorted by address,
	// then Service. Parse fills them from the Services' status; without an API
	// server internal/ipam fills in the rest. The slice is shared with the
	// previous snapshot when nothing in it changed.
	Assignments []Assignment
	// Unclaimed are the addresses in the status of a Service that no Claim is for, sorted: another
	// implementation serves them, or the controller has yet to claim them. Only speakers of a
	// cluster with a controller read them.
	Unclaimed []netip.Addr
	// Refusals say, for Services that hold no address or fewer than they asked
	// for, why; sorted by Service.
	Refusals []Reason
	// Configuration is the objects' last versions without a mistake. The pointer is
	// the same as long as none changes.
	Configuration *Configuration `json:"-"`
	// Problems are the objects that did not parse, or parsed only in part, or refer to
	// something that does not exist.
	Problems []Problem
	// Versions are those of all AddressPools, BGPPeers and advertisements, also if they
	// did not parse; sorted by kind and name.
	Versions []Version
}

// Service finds a Service, nil if there is none of that name.
func (s *Snapshot) Service(name Name) *Spec { return find(s.Services, name, Service.compareName).Spec }

// Node finds a Node, nil if there is none of that name.
func (s *Snapshot) Node(name string) *Node { return NodeOf(s.Nodes, name) }

// NodeOf finds a node in a list that is sorted by name; nil if it is not there.
func NodeOf(all []*Node, name string) *Node {
	return find(all, name, func(n *Node, name string) int { return strings.Compare(n.Name, name) })
}

// Speaker finds what the speaker of a node reports, nil if it has not reported yet.
func (s *Snapshot) Speaker(node string) *Speaker {
	return find(s.Speakers, node, func(s *Speaker, name string) int { return strings.Compare(s.Node, name) })
}

// Claim finds the Claim of an address, nil if there is none.
func (s *Snapshot) Claim(addr netip.Addr) *Claim { return find(s.Claims, addr, (*Claim).compareAddr) }

// Conflict finds what is reported about a host that uses an address; ok is false without a report.
func (s *Snapshot) Conflict(addr netip.Addr) (c Conflict, ok bool) {
	c = find(s.Conflicts, addr, Conflict.compareAddr)
	return c, c.Addr.IsValid()
}

// AssignmentsOf returns the Assignments of an address, more than one if Services share it.
func (s *Snapshot) AssignmentsOf(addr netip.Addr) []Assignment {
	all := s.Assignments
	i, _ := slices.BinarySearchFunc(all, addr, func(a Assignment, b netip.Addr) int { return a.Addr.Compare(b) })
	n := i
	for n < len(all) && all[n].Addr == addr {
		n++
	}
	return all[i:n]
}

// find returns the element with a key of a list that is sorted by it, and zero if there is none.
func find[T, K any](sorted []T, key K, compare func(T, K) int) (found T) {
	if i, ok := slices.BinarySearchFunc(sorted, key, compare); ok {
		found = sorted[i]
	}
	return found
}

// A Service is a LoadBalancer Service and its endpoints. The two parts
// change at very different rates. Both are immutable and shared between
// snapshots, so == between two Services says whether anything changed.
type Service struct {
	*Spec
	// Endpoints is nil when the Service has no EndpointSlice.
	Endpoints *Endpoints
}

// A Spec is what a Service's own object says.
type Spec struct {
	Name    Name
	UID     types.UID // empty when the object did not come from an API server
	Created time.Time // zero when the object carries no creationTimestamp
	Class   string    // spec.loadBalancerClass, empty when unset
	Labels  labels.Set
	Ports   []Port // in the object's order

	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	IPFamilies            []corev1.IPFamily // never empty
	IPFamilyPolicy        corev1.IPFamilyPolicy

	// HealthCheckPort is spec.healthCheckNodePort, zero when there is none: only
	// Services with the external policy Local have one.
	HealthCheckPort uint16
	// ServiceProxy is the label service.kubernetes.io/service-proxy-name, with which
	// kube-proxy leaves the Service alone; empty when it does not.
	ServiceProxy string

	// PublishNotReady counts endpoints as ready, also if their condition says otherwise.
	PublishNotReady bool

	// Restricted says that only clients of Sources may use the Service; without
	// any, no client may. Sources are sorted and do not overlap, IPv4 first.
	Restricted bool
	Sources    []netip.Prefix
	// Affinity is how long a client comes back to the endpoint that it had, 1 s to
	// 24 h; zero when each flow goes anywhere.
	Affinity time.Duration
	// Scheduler is one of the constants of that name.
	Scheduler string
	// Communities are put on the routes to its addresses, nil for none.
	Communities *Communities
	// L2Node is the node that should answer for its addresses by ARP and NDP, as long as
	// it can; empty for any.
	L2Node string

	// Requested are the addresses the Service asks for, by annotation or
	// spec.loadBalancerIP, sorted. Some may be host parts, see [IsHostPart].
	Requested []netip.Addr
	// RequestedPools are the pools, by annotation, in the order of preference.
	RequestedPools []string
	// Contradiction is where the Service asks for two things at once, and which one
	// counts, empty when it does not.
	Contradiction string
	// Sharing is nil when the Service shares its addresses with none.
	Sharing *Sharing
	// Reserve keeps its addresses for it while it is away.
	Reserve bool
	// BadRequest is what is wrong with the requested addresses, empty when all are valid.
	// A Service with a bad request gets no other address: it would lose that one as soon as the
	// request is corrected.
	BadRequest string

	// Status are the addresses of status.loadBalancer.ingress.
	Status []netip.Addr
	// StatusHost is a host name there, empty when there is none. It was not the
	// controller that wrote it.
	StatusHost string
	// StatusProxied says that an address there has ipMode Proxy: nodes send its
	// traffic to a load balancer instead of to pods. Fanfare's addresses never have
	// it.
	StatusProxied bool
	// Reported is the condition that the controller wrote last into the Service's status.
	Reported AddressCondition
}

// An AddressCondition is the condition [AddressAssigned] of a Service. It is zero when the
// Service has none.
type AddressCondition struct {
	Assigned bool // the condition's status is True
	Code     Code
	Message  string
}

// AddressAssigned is the type of the condition of a Service in which the controller writes
// whether it has an address, and why not.
const AddressAssigned = "fanfare.io/AddressAssigned"

// status is the addresses of the object's status; s may be nil.
func (s *Spec) status() []netip.Addr {
	if s == nil {
		return nil
	}
	return s.Status
}

// A Port is one port of a Service. Its Name ties it to the endpoints' ports.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// Endpoints are the endpoints of one Service from all of its EndpointSlices,
// sorted by port name, protocol, address and port, without duplicates.
type Endpoints struct {
	List []Endpoint
}

// An Endpoint is one address and port that answers for one port of a Service.
type Endpoint struct {
	PortName string
	Protocol corev1.Protocol
	Addr     netip.AddrPort
	Node     string // empty when the slice does not say

	// The conditions of discovery/v1, with their documented defaults for
	// absent values (ready and serving: true; terminating: false).
	Ready, Serving, Terminating bool

	// The topology hints of discovery/v1: whose clients this endpoint is for.
	ForZones, ForNodes Hint
}

// A Hint is a set of names, sorted and joined by commas, which no such name has
// in it; empty where there is no hint. That makes Endpoints comparable.
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

// A Node is what Fanfare needs to know about one node.
type Node struct {
	Name        string
	UID         types.UID // empty when the object did not come from an API server
	Labels      labels.Set
	InternalIPs []netip.Addr   // status.addresses of type InternalIP
	PodCIDRs    []netip.Prefix // spec.podCIDRs; wrong under Calico's and Cilium's own IPAM

	// Excluded is set by the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded bool
	// Leaving names the taint that says that this node is about to go away,
	// empty when it stays. Cordon alone does not count.
	Leaving string
	// NetworkUnavailable is the condition of that name.
	NetworkUnavailable bool
	// NotReady: the kubelet says that the node is not Ready. Silence of the kubelet
	// (Unknown) does not count: when the API server is cut off, all nodes have it at once, and
	// a speaker that reads it is alive.
	NotReady bool
	// ReadyUnknown: the kubelet does not report. That says little about one node while others are not
	// unknown, and nothing while most are.
	ReadyUnknown bool
}

// A Pool is a set of addresses to give to Services.
type Pool struct {
	Name          string
	Created       time.Time        // zero when the object carries no creationTimestamp
	Ranges        []netipx.IPRange // in the object's order; none overlaps another, of this pool or of any
	Announce      Announce
	Allocation    Allocation
	AvoidBuggyIPs bool  // do not give out .0 and .255 of IPv4
	Priority      int32 // the highest is tried first

	// Eligibility: only Services that match all three get addresses of the pool. Namespaces
	// are sorted. If they are nil, all match; if they are empty, none does.
	Namespaces                         []string
	NamespaceSelector, ServiceSelector Selector
	// Quota is how many addresses of each family one namespace may have, 0 for any
	// number.
	Quota int
	// ReservedQuota is how many addresses of each family stay reserved for deleted Services
	// of one namespace.
	ReservedQuota int
	// ServiceCommunities are the communities that Services may add to their routes, nil for none.
	ServiceCommunities *Communities
	// AllowL2Node: Services may name the node that answers for their addresses.
	AllowL2Node bool

	// Occupied are the addresses in Ranges that the cluster itself has, sorted;
	// none overlaps another. They keep their place in the pool and are not given out.
	Occupied []Occupied
}

// Occupied are addresses that Services cannot have.
type Occupied struct {
	Range netipx.IPRange
	By    string // whose they are, such as "Node node1" or "the pods of Node node1"
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
	Drained   Allocation = "Drained"   // to none; those given out stay
)

// Contains reports whether addr belongs to the pool.
func (p *Pool) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r netipx.IPRange) bool { return r.Contains(addr) })
}

// PoolOf is the name of the pool that contains addr, empty when none does.
func PoolOf(pools []*Pool, addr netip.Addr) string {
	for _, p := range pools {
		if p.Contains(addr) {
			return p.Name
		}
	}
	return ""
}

// A Peer is a BGP router to announce to, from the nodes that it selects.
type Peer struct {
	// Session has all that the BGPPeer says. PeerAddress is invalid with DefaultGateway, which
	// is another router on each node. LocalASN is MyASN, unless the router knows this node by
	// another number. Password is empty, too, while the Secret cannot be read.
	bgp.Session
	UID     types.UID // empty when the object did not come from an API server
	Created time.Time // zero when the object carries no creationTimestamp
	// DefaultGateway is empty when the router is not the node's own.
	DefaultGateway corev1.IPFamily
	MyASN          uint32 // never 0
	NodeSelector   Selector
	// Secret names the Secret that Password comes from, empty when there is none.
	Secret string
}

// An Advertisement says how addresses are announced over BGP.
type Advertisement struct {
	Name string
	// Pools and Peers are names, sorted; none: all.
	Pools, Peers                  []string
	ServiceSelector, NodeSelector Selector
	// Length4 and Length6 are the prefix lengths to announce addresses by; 32 and
	// 128 for each on its own.
	Length4, Length6 int
	// Communities are put on the routes, nil for none.
	Communities *Communities
	// LocalPref, MED and Prepend are nil where the object does not say.
	LocalPref, MED *uint32
	Prepend        *uint8 // at most 16
}

// A Claim says which Services hold an address. The API server stores one for each address at
// most.
type Claim struct {
	Addr     netip.Addr
	Pool     string   // that the address was given out of
	Announce Announce // of that pool, as the controller saw it last
	Holders  []Holder // sorted by name; none when it is only reserved
	Node     string   // that should answer for the address over L2, empty for any
	Reserved bool     // the claim stays when no Service holds the address
	// ReservedFor are the Services for which the address is kept while none holds it,
	// sorted. An entry without a name is every Service of its namespace.
	ReservedFor []Name
	// Replaced counts the addresses in use by other hosts that the Service had before.
	Replaced int32

	// Created is when the API server stored it; zero: unknown.
	Created time.Time
	// What a write must name, so that it changes no other version than this.
	UID             types.UID
	ResourceVersion string
}

// Name is the name of the claim's object.
func (c *Claim) Name() string { return v1alpha1.ClaimName(c.Addr) }

// A Holder is a Service that has an address.
type Holder struct {
	Name Name
	// UID distinguishes the Service from a later one of the same name. ResourceVersion is the
	// version that the address was allocated to. Either may be empty.
	UID             types.UID
	ResourceVersion string
	Reserve         bool // the address is kept for it when it goes
}

// An Assignment is an address that a Service holds.
type Assignment struct {
	Addr    netip.Addr
	Service Name
	Pool    string // empty when no pool contains the address
	// From is the pool that the address was allocated from, as far as it is known.
	// It matters only when Pool is empty; see [Snapshot.OriginOf].
	From Origin
}

// OriginOf says where an address comes from, and so how it is announced. After its
// pool has lost it, the pool's last known spec.announce applies.
func (s *Snapshot) OriginOf(a Assignment) Origin {
	if p := s.pool(a.Pool); p != nil {
		return Origin{p.Name, p.Announce}
	}
	return a.From
}

// pool finds a pool, nil if there is none of that name.
func (s *Snapshot) pool(name string) *Pool { return PoolNamed(s.Pools, name) }

// PoolNamed finds a pool in a list that is sorted by name; nil if it is not there.
func PoolNamed(all []*Pool, name string) *Pool {
	return find(all, name, func(p *Pool, n string) int { return strings.Compare(p.Name, n) })
}

// UsesL2 reports whether an address may be announced by ARP and NDP.
func (s *Snapshot) UsesL2() bool {
	return len(s.L2Advertisements) > 0 ||
		slices.ContainsFunc(s.Pools, func(p *Pool) bool { return p.Announce == AnnounceL2 }) ||
		slices.ContainsFunc(s.Assignments, func(a Assignment) bool { return a.From.Announce == AnnounceL2 })
}

// Compare orders by address, then Service.
func (a Assignment) Compare(o Assignment) int {
	return cmp.Or(a.Addr.Compare(o.Addr), a.Service.Compare(o.Service))
}

// interned is the only copy of s: many objects name the same namespace or node, and each
// comes with a copy.
func interned[S ~string](s S) S { return unique.Make(s).Value() }

// A Name is a namespaced name.
type Name struct {
	Namespace, Name string
}

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}
