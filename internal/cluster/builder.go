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

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// KeyOf returns the key of an object that Set accepts. ok is false for others.
func KeyOf(obj runtime.Object) (k Key, ok bool) {
	switch obj.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node, *corev1.Namespace, *corev1.Secret,
		*networkingv1.ServiceCIDR,
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

	services map[Name]*Spec
	joiner   joiner
	claims   map[string]*Claim // by the object's name
	l2claims int               // claims whose Announce is L2

	nodes        table[Node]
	namespaces   table[Namespace] // whose labels are known
	serviceCIDRs table[ServiceCIDR]
	pools        table[Pool] // also pools that admit refuses
	peers        table[Peer]
	adverts      table[Advertisement]
	l2adverts    table[L2Advertisement]
	speakers     table[Speaker]

	// unserved says why Services are not served, of all Services; only with Scope.Unserved.
	unserved  map[Name]string
	foreign   map[Name][]netip.Addr // addresses of Services that other implementations serve
	passwords passwords
	poolFiles map[string]string // the files that pools were read from
	versions  map[Key]Version
	validVersions
	reports

	// The rest describes changes since the last snapshot. changed maps a changed Service to its
	// former Spec, nil if it had none.
	changed map[Name]*Spec
	claimed map[netip.Addr]struct{} // addresses whose claims changed
	changes
}

// changes are the changes that are not visible in a table.
type changes struct {
	nodeLabels      bool // or the set of Nodes
	nodeAddresses   bool // of Nodes and their pods
	foreignChanged  bool
	versionsChanged bool
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
		last:          &Snapshot{L2Ready: true, AllNodes: true},
		services:      map[Name]*Spec{},
		joiner:        newJoiner(),
		claims:        map[string]*Claim{},
		unserved:      map[Name]string{},
		foreign:       map[Name][]netip.Addr{},
		passwords:     newPasswords(),
		poolFiles:     map[string]string{},
		versions:      map[Key]Version{},
		validVersions: validVersions{good: map[Key]runtime.Object{}},
		reports:       reports{causes: map[string][]Problem{}, former: map[string][]Problem{}},
		changed:       map[Name]*Spec{},
		claimed:       map[netip.Addr]struct{}{},
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
	if known := b.restore(key, obj); known != nil {
		b.Set(known, file)
	}
	b.setVersion(key, obj)
	p := b.store(key, obj, file)
	if len(p) == 0 {
		b.keep(key, obj)
	}
	b.Report(key.String(), p.Of(key, file))
}

// Delete removes an object. A missing object is no error.
func (b *Builder) Delete(key Key) {
	b.setVersion(key, nil)
	b.store(key, nil, "")
	b.forget(key)
	b.Report(key.String(), nil)
}

// store parses an object, and replaces its earlier version; a nil object deletes it.
func (b *Builder) store(key Key, obj runtime.Object, file string) Problems {
	switch name := key.Name.Name; key.Kind {
	case "Service":
		return b.storeService(key.Name, obj)
	case "EndpointSlice":
		s, p := parsed(obj, parseSlice)
		if b.joiner.setSlice(key.Name, s) && b.scope.Unserved {
			b.foreignChanged = true
		}
		return p
	case "Node":
		n, p := parsed(obj, parseNode)
		b.setNode(name, n)
		return p
	case "Namespace":
		return store(&b.namespaces, name, obj, parseNamespace)
	case "ServiceCIDR":
		return store(&b.serviceCIDRs, name, obj, parseServiceCIDR)
	case "SpeakerStatus":
		return store(&b.speakers, name, obj, parseSpeaker)
	case "Secret":
		if key.Name.Namespace != b.scope.namespace() {
			return nil
		}
		password, p := parsed(obj, parseSecret)
		b.peers.changed = b.passwords.set(name, password) || b.peers.changed
		return p
	case "AddressClaim":
		c, p := parsed(obj, parseClaim)
		if c != nil && b.scope.ReadOnly {
			c.forget()
		}
		b.setClaim(name, c)
		return p
	}
	return b.storeConfiguration(key, obj, file)
}

// storeConfiguration is store for objects whose last valid version stays in use.
func (b *Builder) storeConfiguration(key Key, obj runtime.Object, file string) Problems {
	switch name := key.Name.Name; key.Kind {
	case "AddressPool":
		pool, p := parsed(obj, parsePool)
		if b.pools.setGood(name, pool, p) {
			b.poolFiles[name] = file
		}
		return p
	case "BGPPeer":
		return storeGood(&b.peers, name, obj, parsePeer)
	case "BGPAdvertisement":
		return storeGood(&b.adverts, name, obj, parseAdvertisement)
	case "L2Advertisement":
		return storeGood(&b.l2adverts, name, obj, parseL2Advertisement)
	default:
		return nil
	}
}

func (b *Builder) storeService(name Name, obj runtime.Object) Problems {
	o, exists := obj.(*corev1.Service)
	if !exists {
		b.setService(name, nil)
		b.setForeign(name, nil)
		delete(b.unserved, name)
		return nil
	}
	s, p := parseService(o, b.scope.Classes)
	b.setService(name, s)
	b.setForeign(name, foreignAddresses(o, s))
	if b.scope.Unserved {
		b.unserved[name], b.foreignChanged = "", true
		if s == nil {
			b.unserved[name] = whyUnserved(o)
		}
	}
	return p
}

func (b *Builder) setService(name Name, s *Spec) {
	old := b.services[name]
	if !replace(b.services, name, s) {
		return
	}
	if _, ok := b.changed[name]; !ok {
		b.changed[name] = old
	}
	b.joiner.setPorts(name, s)
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
	if old == nil || n == nil || !slices.Equal(old.InternalIPs, n.InternalIPs) ||
		!slices.Equal(old.PodCIDRs, n.PodCIDRs) {
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

// Dirty reports whether anything may differ from the last snapshot.
func (b *Builder) Dirty() bool {
	return len(b.changed) != 0 || len(b.joiner.joins) != 0 || len(b.claimed) != 0 || len(b.former) != 0 ||
		b.goodChanged || b.changes != changes{} ||
		slices.ContainsFunc(b.tables(), func(changed *bool) bool { return *changed })
}

// tables returns of each table whether it has changed.
func (b *Builder) tables() []*bool {
	return []*bool{&b.nodes.changed, &b.namespaces.changed, &b.serviceCIDRs.changed, &b.pools.changed, &b.peers.changed,
		&b.adverts.changed, &b.l2adverts.changed, &b.speakers.changed}
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
