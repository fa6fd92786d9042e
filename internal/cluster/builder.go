package cluster

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
)

// A Key names an object. The namespace of cluster-scoped kinds is empty.
type Key struct {
	Kind string
	Name Name
}

func (k Key) String() string {
	if k.Name.Namespace == "" {
		return k.Kind + " " + k.Name.Name
	}
	return k.Kind + " " + k.Name.String()
}

// KeyOf returns the key of an object that Set accepts. ok is false for others.
func KeyOf(obj runtime.Object) (k Key, ok bool) {
	switch obj.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node, *corev1.Namespace, *corev1.Secret, *networkingv1.ServiceCIDR,
		*v1alpha1.AddressPool, *v1alpha1.BGPPeer, *v1alpha1.BGPAdvertisement, *v1alpha1.L2Advertisement,
		*v1alpha1.SpeakerStatus, *v1alpha1.AddressClaim:
	default:
		return Key{}, false
	}
	o := obj.(metav1.Object)
	return Key{reflect.TypeOf(obj).Elem().Name(), Name{interned(o.GetNamespace()), o.GetName()}}, true
}

// Parse makes a snapshot of objects, of the kinds that [Builder.Set] accepts.
func Parse(objects ...runtime.Object) *Snapshot {
	b := NewBuilder()
	for _, o := range objects {
		b.Set(o, "")
	}
	return b.Snapshot()
}

// A Builder turns objects into snapshots. It keeps the parsed parts of each object, so that a
// snapshot after one change costs only the parsing of that object and a copy of the slices'
// pointers. It is for one goroutine.
type Builder struct {
	scope Scope
	last  *Snapshot // the last snapshot

	services  map[Name]*Spec
	slices    map[Name]*slice   // by the slice's own name
	byService map[Name][]*slice // in no order; nearly always one
	ports     map[Name]*servicePorts
	pooled    *netipx.IPSet       // addresses for Services
	endpoints map[Name]*Endpoints // joined, of the Services in services
	claims    map[string]*Claim   // by the object's name
	l2claims  int                 // claims whose Announce is L2

	nodes        table[Node]
	namespaces   table[Namespace] // whose labels are known
	serviceCIDRs table[ServiceCIDR]
	pools        table[Pool] // also pools that admit refuses
	peers        table[Peer]
	adverts      table[Advertisement]
	l2adverts    table[L2Advertisement]
	speakers     table[Speaker]

	unserved    map[Name]string         // why Services are not served, of all Services; only with Scope.Unserved
	foreign     map[Name][]netip.Addr   // addresses of Services that other implementations serve
	secrets     map[string]bgp.Password // by name; a deleted one stays while a peer needs it
	secretsGone map[string]bool         // names without a Secret, or without a password in it
	// secretsRefused are names that this process may not read.
	secretsRefused map[string]bool
	poolFiles      map[string]string // the files that pools were read from
	versions       map[Key]Version
	known          map[Key]runtime.Object // versions from an earlier process, of objects that are not set yet
	good           map[Key]runtime.Object // the last valid versions
	problems       map[string][]Problem   // by their cause; never an empty list
	newProblems    []Problem              // see NewProblems

	// The rest describes changes since the last snapshot. changed maps a changed Service to its
	// former Spec, nil if it had none.
	changed map[Name]*Spec
	joins   map[Name]struct{}       // Services whose slices changed
	claimed map[netip.Addr]struct{} // addresses whose claims changed
	// reported maps a cause whose Problems changed to the former ones.
	reported map[string][]Problem
	changes
}

// changes are the changes that are not visible in a table.
type changes struct {
	nodeLabels      bool // or the set of Nodes
	nodeAddresses   bool // of Nodes and their pods
	foreignChanged  bool
	versionsChanged bool
	goodChanged     bool
	l2Read          bool // ReadL2 was called
}

// A Scope is the part of a cluster that a Builder reads. The zero value is the whole.
type Scope struct {
	// Namespace of the Secrets that BGPPeers name. Empty: DefaultNamespace.
	Namespace string
	// Classes select the Services that Fanfare serves.
	Classes Classes
	// ReadOnly: claims lack the UID and version, which only writes need.
	ReadOnly bool
	// NoSecrets: peers are treated as if they had no password.
	NoSecrets bool
	// SecretsOf is the Node that needs passwords: those of the peers that select it. Empty: those
	// of all peers.
	SecretsOf string
	// NoAdvertisements: a pool without an advertisement is no Problem, nor is a missing reference
	// of advertisements.
	NoAdvertisements bool
	// SomeNodes: only some of the cluster's Nodes are set.
	SomeNodes bool
	// Unserved: snapshots say which objects are not served, and why. It costs memory for each Service of the cluster.
	Unserved bool
	// L2Pending: objects that only L2 needs are not read yet, see [Builder.ReadL2].
	L2Pending bool
}

func (s Scope) namespace() string { return cmp.Or(s.Namespace, DefaultNamespace) }

// Limit sets the scope. Call it before the first Set.
func (b *Builder) Limit(s Scope) { b.scope = s }

// ReadL2 ends L2Pending: all objects that only L2 needs are set, including all Nodes.
func (b *Builder) ReadL2() { b.scope.L2Pending, b.scope.SomeNodes, b.l2Read = false, false, true }

// NewBuilder returns a Builder without objects.
func NewBuilder() *Builder {
	return &Builder{
		last:           &Snapshot{L2Ready: true, AllNodes: true},
		services:       map[Name]*Spec{},
		slices:         map[Name]*slice{},
		byService:      map[Name][]*slice{},
		ports:          map[Name]*servicePorts{},
		endpoints:      map[Name]*Endpoints{},
		claims:         map[string]*Claim{},
		secrets:        map[string]bgp.Password{},
		foreign:        map[Name][]netip.Addr{},
		unserved:       map[Name]string{},
		secretsGone:    map[string]bool{},
		secretsRefused: map[string]bool{},
		poolFiles:      map[string]string{},
		versions:       map[Key]Version{},
		known:          map[Key]runtime.Object{},
		good:           map[Key]runtime.Object{},
		problems:       map[string][]Problem{},
		changed:        map[Name]*Spec{},
		joins:          map[Name]struct{}{},
		claimed:        map[netip.Addr]struct{}{},
		reported:       map[string][]Problem{},
	}
}

// StaysInUse is the end of a Problem's text if an older version of the object stays in use.
const StaysInUse = "; the version before stays in use"

// Set adds or replaces an object of a kind that [KeyOf] accepts, and ignores others. It keeps parts
// of obj, such as its labels, which must not be modified afterwards. file is where the object was
// read from, for Problems.
//
// An AddressPool, BGPPeer or advertisement with a mistake does not replace a valid version, just as
// an API server would not store it: so no typo ends a session or removes addresses. If there is no
// valid version of a pool, its part without mistakes is used.
func (b *Builder) Set(obj runtime.Object, file string) {
	key, ok := KeyOf(obj)
	if !ok {
		return
	}
	b.restore(key, obj, file)
	b.setVersion(key, obj)
	p := b.parse(key, obj, file)
	if len(p) == 0 {
		b.keepGood(key, obj)
	}
	b.Report(key.String(), p.Of(key.String(), file))
}

// parse parses an object, and replaces its earlier version.
func (b *Builder) parse(key Key, obj runtime.Object, file string) Problems {
	switch o := obj.(type) {
	case *corev1.Service:
		s, p := parseService(o, b.scope.Classes)
		b.setService(key.Name, s)
		b.setForeign(key.Name, foreignAddresses(o, s))
		b.setUnserved(o, s != nil)
		return p
	case *discoveryv1.EndpointSlice:
		s, p := parseSlice(o)
		b.setSlice(key.Name, s)
		return p
	case *corev1.Node:
		n, p := parseNode(o)
		b.setNode(o.Name, n)
		return p
	case *corev1.Namespace:
		b.namespaces.set(o.Name, parseNamespace(o))
	case *networkingv1.ServiceCIDR:
		c, p := parseServiceCIDR(o)
		b.serviceCIDRs.set(o.Name, c)
		return p
	case *corev1.Secret:
		if o.Namespace != b.scope.namespace() {
			return nil
		}
		password, p := parseSecret(o)
		b.setSecret(key.Name, password)
		return p
	case *v1alpha1.SpeakerStatus:
		b.speakers.set(o.Name, parseSpeaker(o))
	case *v1alpha1.AddressClaim:
		c, p := parseClaim(o)
		if c != nil && b.scope.ReadOnly {
			c.forget()
		}
		b.setClaim(o.Name, c)
		return p
	}
	return b.parseConfiguration(obj, file)
}

// parseConfiguration is parse for objects whose last valid version stays in use.
func (b *Builder) parseConfiguration(obj runtime.Object, file string) Problems {
	switch o := obj.(type) {
	case *v1alpha1.AddressPool:
		pool, p := parsePool(o)
		if b.pools.setGood(o.Name, pool, p) {
			b.poolFiles[o.Name] = file
		}
		return p
	case *v1alpha1.BGPPeer:
		peer, p := parsePeer(o)
		b.peers.setGood(o.Name, peer, p)
		return p
	case *v1alpha1.BGPAdvertisement:
		a, p := parseAdvertisement(o)
		b.adverts.setGood(o.Name, a, p)
		return p
	case *v1alpha1.L2Advertisement:
		a, p := parseL2Advertisement(o)
		b.l2adverts.setGood(o.Name, a, p)
		return p
	}
	return nil
}

// Delete removes an object. A missing object is no error.
func (b *Builder) Delete(key Key) {
	b.setVersion(key, nil)
	switch name := key.Name.Name; key.Kind {
	case "Service":
		b.setService(key.Name, nil)
		b.setForeign(key.Name, nil)
		delete(b.unserved, key.Name)
	case "EndpointSlice":
		b.setSlice(key.Name, nil)
	case "Node":
		b.setNode(name, nil)
	case "Namespace":
		b.namespaces.set(name, nil)
	case "ServiceCIDR":
		b.serviceCIDRs.set(name, nil)
	case "Secret":
		b.setSecret(key.Name, "")
	case "AddressPool":
		b.pools.set(name, nil)
		delete(b.poolFiles, name)
	case "BGPPeer":
		b.peers.set(name, nil)
	case "BGPAdvertisement":
		b.adverts.set(name, nil)
	case "L2Advertisement":
		b.l2adverts.set(name, nil)
	case "SpeakerStatus":
		b.speakers.set(name, nil)
	case "AddressClaim":
		b.setClaim(name, nil)
	}
	b.forgetGood(key)
	b.Report(key.String(), nil)
}

// Report replaces the Problems of a cause. An empty list ends them.
func (b *Builder) Report(cause string, p []Problem) {
	old := b.problems[cause]
	if slices.Equal(old, p) {
		return
	}
	if _, ok := b.reported[cause]; !ok {
		b.reported[cause] = old
	}
	if len(p) == 0 {
		delete(b.problems, cause)
	} else {
		b.problems[cause] = p
	}
}

func (b *Builder) setService(name Name, s *Spec) {
	old := b.services[name]
	if !replace(b.services, name, s) {
		return
	}
	if _, ok := b.changed[name]; !ok {
		b.changed[name] = old
	}
	b.setPorts(name, s)
}

// setPorts rejoins the slices of a Service if its ports differ.
func (b *Builder) setPorts(name Name, s *Spec) {
	old := b.ports[name]
	switch {
	case s == nil:
		delete(b.ports, name)
	case old != nil && slices.Equal(old.ports, s.Ports):
		s.Ports = old.ports // one copy
		return
	default:
		b.ports[name] = newServicePorts(s.Ports)
	}
	b.joins[name] = struct{}{}
}

// setForeign records the addresses of a Service that another implementation serves.
func (b *Builder) setForeign(name Name, addrs []netip.Addr) {
	if slices.Equal(b.foreign[name], addrs) {
		return
	}
	b.foreignChanged = true
	if b.foreign[name] = addrs; len(addrs) == 0 {
		delete(b.foreign, name)
	}
}

// setNode records separately whether labels or addresses have changed: conditions change more often.
func (b *Builder) setNode(name string, n *Node) {
	old := b.nodes.objects[name]
	b.nodes.set(name, n)
	if n = b.nodes.objects[name]; n == old {
		return
	}
	if old == nil || n == nil || !maps.Equal(old.Labels, n.Labels) {
		b.nodeLabels = true
	}
	if old == nil || n == nil || !slices.Equal(old.InternalIPs, n.InternalIPs) || !slices.Equal(old.PodCIDRs, n.PodCIDRs) {
		b.nodeAddresses = true
	}
}

// setVersion records that obj was read or, if it is nil, that it no longer exists.
func (b *Builder) setVersion(key Key, obj runtime.Object) {
	if !versioned[key.Kind] {
		return
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		delete(b.versions, key)
		b.versionsChanged = true
		return
	}
	v := Version{key.Kind, key.Name.Name, o.GetUID(), o.GetGeneration()}
	if b.versions[key] != v {
		b.versions[key], b.versionsChanged = v, true
	}
}

// setClaim relies on each address having only one name, so c and the previous claim are for the
// same address.
func (b *Builder) setClaim(name string, c *Claim) {
	old := b.claims[name]
	if !replace(b.claims, name, c) {
		return
	}
	b.claimed[cmp.Or(c, old).Addr] = struct{}{}
	if old != nil && old.Announce == AnnounceL2 {
		b.l2claims--
	}
	if c != nil && c.Announce == AnnounceL2 {
		b.l2claims++
	}
}

func (b *Builder) setSlice(name Name, s *slice) {
	old := b.slices[name]
	if !replaceFunc(b.slices, name, s, (*slice).equal) {
		return
	}
	b.foreignChanged = b.foreignChanged || b.scope.Unserved
	if old != nil {
		b.unjoin(old)
	}
	if s != nil {
		b.byService[s.service] = append(b.byService[s.service], s)
		b.rejoin(s.service)
	}
}

func (b *Builder) unjoin(s *slice) {
	parts := slices.DeleteFunc(b.byService[s.service], func(part *slice) bool { return part == s })
	if b.byService[s.service] = parts; len(parts) == 0 {
		delete(b.byService, s.service)
	}
	b.rejoin(s.service)
}

// rejoin records that the slices of a Service have changed, if Fanfare serves it. In most clusters
// Fanfare serves few Services, and the endpoints of others must not notify readers.
func (b *Builder) rejoin(service Name) {
	if b.services[service] != nil {
		b.joins[service] = struct{}{}
	}
}

// Dirty reports whether anything may differ from the last snapshot.
func (b *Builder) Dirty() bool {
	return len(b.changed) != 0 || len(b.joins) != 0 || len(b.claimed) != 0 || len(b.reported) != 0 || b.changes != changes{} ||
		b.nodes.changed || b.namespaces.changed || b.serviceCIDRs.changed || b.pools.changed || b.peers.changed ||
		b.adverts.changed || b.l2adverts.changed || b.speakers.changed
}

// Aggregates reports whether any advertisement announces prefixes of several addresses.
func (b *Builder) Aggregates() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(b.adverts.objects)), (*Advertisement).Aggregates)
}

// MayUseL2 reports whether addresses may be announced by ARP and NDP.
func (b *Builder) MayUseL2() bool {
	if len(b.l2adverts.objects) != 0 || b.l2claims != 0 {
		return true
	}
	for _, p := range b.pools.objects {
		if p.Announce == AnnounceL2 {
			return true
		}
	}
	return false
}
