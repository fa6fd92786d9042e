package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
	"golang.org/x/tools/txtar"
)

// A scene is a State and packets that meet it: one file of testdata/packets. Its
// addresses are those of labAddr, and all is done in both families.
//
// A line of the State is one of
//
//	owned PREFIX…
//	clients cidr|interface|bridge WHAT…
//	snat ports|source|never|mark WHAT…
//	bind NAME INTERFACE       the node has the address
//	NAME                      an address without ports
//	NAME PROTOCOL/PORT external BACKEND… internal BACKEND… [FIELD VALUE…]…
//
// where "masquerade" and "drop" among backends are the Target's Remote and Miss, and
// a field is scheduler, affinity, sources or draining. A line of packets is
//
//	FROM PROTOCOL NAME:PORT [one of] OUTCOME [or OUTCOME]…
//
// FROM node is a process of the host, a protocol may be ping or end in the one family
// that is meant, such as udp4, and "any" stands for TCP, UDP and SCTP. A line of what
// was learned,
//
//	FROM PROTOCOL NAME:PORT BACKEND
//
// is a client that has been there, and where it came to. Outcomes are those of lab.probe; all that are named must occur,
// and no other; but of "one of" them a client finds the same again and again.
type scene struct {
	name  string
	state State
	bound []binding
	rows  []sceneRow
	knows []sceneMemory
}

// A sceneMemory is a client of a frontend with affinity, and the backend that it had.
type sceneMemory struct {
	client  netip.Addr
	vip     netip.Addr
	port    state.Port
	backend Backend
}

// A binding is an address of an interface of the node.
type binding struct {
	addr  netip.Addr
	iface string
}

// A sceneRow is one kind of packet in one family.
type sceneRow struct {
	line          string
	from, network string
	to            netip.AddrPort
	want          []string // sorted
	same          bool     // each time
}

func scenes(t *testing.T) []scene {
	t.Helper()
	paths, err := filepath.Glob("testdata/packets/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenes: %v", err)
	}
	var all []scene
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, mustParseScene(t, path, a))
	}
	return all
}

func mustParseScene(t *testing.T, path string, a *txtar.Archive) scene {
	t.Helper()
	s, err := parseScene(a)
	if err == nil {
		err = s.state.Validate()
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	s.name = strings.TrimSuffix(filepath.Base(path), ".txtar")
	return *s
}

func parseScene(a *txtar.Archive) (*scene, error) {
	s := &scene{state: State{Node: "n1"}}
	sections := map[string]func([]string) error{"state": s.addState, "packets": s.addRows, "learned": s.learn}
	for _, f := range a.Files {
		for line := range strings.Lines(string(f.Data)) {
			line, _, _ = strings.Cut(line, "#")
			words, add := strings.Fields(line), sections[f.Name]
			if len(words) == 0 || add == nil {
				continue
			}
			if err := add(words); err != nil {
				return s, fmt.Errorf("%s: %q: %w", f.Name, strings.TrimSpace(line), err)
			}
		}
	}
	slices.SortFunc(s.state.VIPs, func(a, b *VIP) int { return a.Addr.Compare(b.Addr) })
	for _, v := range s.state.VIPs {
		slices.SortFunc(v.Frontends, func(a, b Frontend) int { return state.CompareFrontends(&a, &b) })
	}
	return s, nil
}

func (s *scene) addState(words []string) error {
	switch words[0] {
	case "owned":
		s.state.Owned = prefixes(words[1:]...)
		return nil
	case "clients":
		return parseClients(&s.state.Clients, words[1:])
	case "snat":
		return parseSNAT(&s.state.SNAT, words[1:])
	}
	name, isBound := words[0], words[0] == "bind"
	if isBound {
		name = words[1]
	}
	for family := range state.SetID(2) {
		if labAddr[name][family] == "" {
			return fmt.Errorf("no address %s", name)
		}
		if isBound {
			s.bound = append(s.bound, binding{at(name, family), words[2]})
			continue
		}
		v := s.vip(at(name, family))
		if len(words) == 1 {
			continue
		}
		if err := addPort(v, family, words[1:]); err != nil {
			return err
		}
	}
	return nil
}

func parseClients(c *LocalClients, words []string) error {
	switch words[0] {
	case "cidr":
		c.CIDRs = prefixes(words[1:]...)
	case "interface":
		c.InterfacePrefix = words[1]
	case "bridge":
		c.Bridge = words[1]
	default:
		return fmt.Errorf("%s; want cidr, interface or bridge", words[0])
	}
	return nil
}

func parseSNAT(s *SNAT, words []string) error {
	switch words[0] {
	case "ports":
		ports := map[string]Ports{"fully-random": PortFullyRandom, "random": PortRandom, "kept": PortKept}
		s.Ports = ports[words[1]]
	case "source":
		s.Sources = []netip.Addr{at(words[1], 0), at(words[1], 1)}
	case "never":
		s.Never = prefixes(words[1:]...)
	case "mark":
		_, err := fmt.Sscanf(words[1], "%v/%v", &s.Mark.Value, &s.Mark.Mask)
		return err
	default:
		return fmt.Errorf("%s; want ports, source, never or mark", words[0])
	}
	return nil
}

func (s *scene) vip(a netip.Addr) *VIP {
	for _, v := range s.state.VIPs {
		if v.Addr == a {
			return v
		}
	}
	v := &VIP{Addr: a}
	s.state.VIPs = append(s.state.VIPs, v)
	return v
}

// sceneProtocols are the words for protocols.
var sceneProtocols = map[string][]Protocol{"tcp": {TCP}, "udp": {UDP}, "sctp": {SCTP}, "any": {TCP, UDP, SCTP}}

// addPort reads "any/80 external pod1 internal pod1 remote".
func addPort(v *VIP, family state.SetID, words []string) error {
	proto, number, _ := strings.Cut(words[0], "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || sceneProtocols[proto] == nil {
		return fmt.Errorf("port %q; want such as tcp/80", words[0])
	}
	f := Frontend{Port: uint16(port), External: Target{Remote: Preserve}, Internal: Target{Remote: Preserve}}
	about := ""
	for _, w := range words[1:] {
		switch w {
		case "external", "internal", "scheduler", "affinity", "sources", "draining":
			about = w
			continue
		}
		if err := addFrontend(&f, family, about, w); err != nil {
			return err
		}
	}
	slices.SortFunc(f.Sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	slices.SortFunc(f.Draining, netip.AddrPort.Compare)
	for _, t := range []*Target{&f.External, &f.Internal} {
		slices.SortFunc(t.Backends, func(a, b Backend) int { return a.Addr.Compare(b.Addr) })
	}
	for _, p := range sceneProtocols[proto] {
		f.Protocol = p
		v.Frontends = append(v.Frontends, f)
	}
	return nil
}

var sceneSchedulers = map[string]Scheduler{
	"random": Random, "roundrobin": RoundRobin, "sourcehash": SourceHash, "maglev": Maglev,
}

// add adds one word about something of the frontend.
func addFrontend(f *Frontend, family state.SetID, about, word string) (err error) {
	switch about {
	case "external":
		return addTarget(&f.External, family, word)
	case "internal":
		return addTarget(&f.Internal, family, word)
	case "scheduler":
		var ok bool
		if f.Scheduler, ok = sceneSchedulers[word]; !ok {
			return fmt.Errorf("no scheduler %s", word)
		}
	case "affinity":
		f.Affinity, err = time.ParseDuration(word)
	case "sources":
		f.Sources = append(make([]netip.Prefix, 0), f.Sources...) // not nil, which lets in all
		if word != "none" {
			a := at(word, family)
			f.Sources = append(f.Sources, netip.PrefixFrom(a, a.BitLen()))
		}
	case "draining":
		b, err := sceneBackend(family, word)
		f.Draining = append(f.Draining, b.Addr)
		return err
	default:
		return fmt.Errorf("%s about %q", word, about)
	}
	return err
}

func addTarget(t *Target, family state.SetID, word string) error {
	switch word {
	case "masquerade":
		t.Remote = Masquerade
	case "drop":
		t.Miss = Drop
	default:
		b, err := sceneBackend(family, word)
		if err != nil {
			return err
		}
		t.Backends = append(t.Backends, b)
	}
	return nil
}

// sceneBackend reads pod1, or pod1:8081 for another port than that of backends.
func sceneBackend(family state.SetID, word string) (Backend, error) {
	name, number, hasPort := strings.Cut(word, ":")
	if labServes[name] == nil {
		return Backend{}, fmt.Errorf("no backend %s", name)
	}
	b := backends(family, name)[0]
	if hasPort {
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return b, err
		}
		b.Addr = netip.AddrPortFrom(b.Addr.Addr(), uint16(port))
	}
	return b, nil
}

// learn reads "client any vip:80 pod2".
func (s *scene) learn(words []string) error {
	if len(words) != 4 {
		return fmt.Errorf("want a client, a protocol, an address and a backend")
	}
	name, number, _ := strings.Cut(words[2], ":")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || labAddr[name][0] == "" || labAddr[words[0]][0] == "" || sceneProtocols[words[1]] == nil {
		return fmt.Errorf("want such as client any vip:80 pod2")
	}
	for family := range state.SetID(2) {
		b, err := sceneBackend(family, words[3])
		if err != nil {
			return err
		}
		for _, proto := range sceneProtocols[words[1]] {
			s.knows = append(s.knows, sceneMemory{at(words[0], family), at(name, family), state.Port{Proto: proto, Port: uint16(n)}, b})
		}
	}
	return nil
}

// element is the memory in the words of nftables.
func (m sceneMemory) element() state.Element {
	key := state.Encoding(nil).Addr(m.client).Addr(m.vip).Proto(m.port.Proto).Port(m.port.Port)
	return state.Element{Set: state.SetAff + state.Family(m.vip), Key: string(key), Data: string(state.Encoding(nil).AddrPort(m.backend.Addr))}
}

// set is the set of iptables that has the client.
func (m sceneMemory) set(s *State) string {
	return iptables.AffinityName(s.Vip(m.vip), s.Frontend(m.vip, m.port), m.backend)
}

// addRows reads "client any vip:80 pod1 saw client or pod2 saw client".
func (s *scene) addRows(words []string) error {
	if len(words) < 4 {
		return fmt.Errorf("want a client, a protocol, an address and an outcome")
	}
	networks, families := []string{"tcp", "udp", "sctp"}, []state.SetID{0, 1}
	if words[1] != "any" {
		networks = []string{strings.TrimRight(words[1], "46")}
	}
	switch strings.TrimPrefix(words[1], networks[0]) {
	case "4":
		families = families[:1]
	case "6":
		families = families[1:]
	}
	name, number, _ := strings.Cut(words[2], ":")
	port, err := strconv.ParseUint(cmp.Or(number, "0"), 10, 16)
	if err != nil || labAddr[name][0] == "" {
		return fmt.Errorf("%s; want such as vip:80", words[2])
	}
	outcomes, same := strings.CutPrefix(strings.Join(words[3:], " "), "one of ")
	want := strings.Split(outcomes, " or ")
	slices.Sort(want)
	for _, family := range families {
		for _, network := range networks {
			s.rows = append(s.rows, sceneRow{
				line: strings.Join(words, " "), from: words[0], network: network,
				to: netip.AddrPortFrom(at(name, family), uint16(port)), want: want, same: same,
			})
		}
	}
	return nil
}

func (r sceneRow) String() string {
	return fmt.Sprintf("%q: %s to %s %s", r.line, r.from, r.network, r.to)
}

func (s *scene) view() *nodeView {
	n := labView()
	for _, b := range s.bound {
		n.bind(b.iface, b.addr)
	}
	return n
}
