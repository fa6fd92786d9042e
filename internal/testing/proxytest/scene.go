package proxytest

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

	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// In is a row where modes differ.
func (s *Scene) In(m state.Mode, row SceneRow) SceneRow {
	if m != state.ModeIPTables {
		return row
	}
	if row.From == "node" && row.To.Addr() == At("other", 0) && !ServesState(s.State, row.To.Addr()) {
		row.Want = []string{"silence"} // it comes back from the router as a martian, before filter chains
	}
	return row
}

func (s Scene) BesideIPVS() bool {
	return slices.ContainsFunc(s.Bound, func(b binding) bool { return b.Iface == "kube-ipvs0" })
}

func (s Scene) Binds(a netip.Addr) bool {
	return slices.ContainsFunc(s.Bound, func(b binding) bool { return b.Addr == a })
}

// Ok reports whether a row's outcomes are as they should be.
func (r SceneRow) Ok(got []string) bool {
	if r.Same {
		return len(got) == 1 && slices.Contains(r.Want, got[0])
	}
	return slices.Equal(got, r.Want)
}

// A Scene is a State and packets that meet it: one file of testdata/packets. Its
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
// is a client that has been there, and where it came to. Outcomes are those of lab.probe; all that are named must
// occur, and no other; but of "one of" them a client finds the same again and again.
type Scene struct {
	Name  string
	State state.State
	Bound []binding
	Rows  []SceneRow
	Knows []SceneMemory
}

// A SceneMemory is a client of a frontend with affinity, and the backend that it had.
type SceneMemory struct {
	Client  netip.Addr
	VIP     netip.Addr
	Port    state.Port
	Backend state.Backend
}

// A binding is an address of an interface of the node.
type binding struct {
	Addr  netip.Addr
	Iface string
}

// A SceneRow is one kind of packet in one family.
type SceneRow struct {
	line          string
	From, Network string
	To            netip.AddrPort
	Want          []string // sorted
	Same          bool     // each time
}

// Scenes reads the files that match a pattern.
func Scenes(t *testing.T, pattern string) []Scene {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenes: %v", err)
	}
	var all []Scene
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, MustParseScene(t, path, a))
	}
	return all
}

func MustParseScene(t *testing.T, path string, a *txtar.Archive) Scene {
	t.Helper()
	s, err := parseScene(a)
	if err == nil {
		err = s.State.Validate()
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	s.Name = strings.TrimSuffix(filepath.Base(path), ".txtar")
	return *s
}

func parseScene(a *txtar.Archive) (*Scene, error) {
	s := &Scene{State: state.State{Node: "n1"}}
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
	for v := range s.State.VIPs.All() {
		slices.SortFunc(v.Frontends, func(a, b state.Frontend) int { return state.CompareFrontends(&a, &b) })
	}
	return s, nil
}

func (s *Scene) addState(words []string) error {
	switch words[0] {
	case "owned":
		s.State.Owned = Prefixes(words[1:]...)
		return nil
	case "clients":
		return parseClients(&s.State.Clients, words[1:])
	case "snat":
		return parseSNAT(&s.State.SNAT, words[1:])
	}
	name, isBound := words[0], words[0] == "bind"
	if isBound {
		name = words[1]
	}
	for family := range state.SetID(2) {
		if LabAddr[name][family] == "" {
			return fmt.Errorf("no address %s", name)
		}
		if isBound {
			s.Bound = append(s.Bound, binding{At(name, family), words[2]})
			continue
		}
		v := s.vip(At(name, family))
		if len(words) == 1 {
			continue
		}
		if err := addPort(v, family, words[1:]); err != nil {
			return err
		}
	}
	return nil
}

func parseClients(c *state.LocalClients, words []string) error {
	switch words[0] {
	case "cidr":
		c.CIDRs = Prefixes(words[1:]...)
	case "interface":
		c.InterfacePrefix = words[1]
	case "bridge":
		c.Bridge = words[1]
	default:
		return fmt.Errorf("%s; want cidr, interface or bridge", words[0])
	}
	return nil
}

func parseSNAT(s *state.SNAT, words []string) error {
	switch words[0] {
	case "ports":
		ports := map[string]state.Ports{
			"fully-random": state.PortFullyRandom, "random": state.PortRandom, "kept": state.PortKept,
		}
		s.Ports = ports[words[1]]
	case "source":
		s.Sources = []netip.Addr{At(words[1], 0), At(words[1], 1)}
	case "never":
		s.Never = Prefixes(words[1:]...)
	case "mark":
		_, err := fmt.Sscanf(words[1], "%v/%v", &s.Mark.Value, &s.Mark.Mask)
		return err
	default:
		return fmt.Errorf("%s; want ports, source, never or mark", words[0])
	}
	return nil
}

func (s *Scene) vip(a netip.Addr) *state.VIP {
	v := s.State.VIP(a)
	if v == nil {
		v = &state.VIP{Addr: a}
		s.State.VIPs = WithVIPs(s.State.VIPs, v)
	}
	return v
}

// sceneProtocols are the words for protocols.
var sceneProtocols = map[string][]state.Protocol{
	"tcp": {state.TCP}, "udp": {state.UDP}, "sctp": {state.SCTP}, "any": {state.TCP, state.UDP, state.SCTP},
}

// addPort reads "any/80 external pod1 internal pod1 remote".
func addPort(v *state.VIP, family state.SetID, words []string) error {
	proto, number, _ := strings.Cut(words[0], "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || sceneProtocols[proto] == nil {
		return fmt.Errorf("port %q; want such as tcp/80", words[0])
	}
	f := state.Frontend{
		Port: uint16(port), External: state.Target{Remote: state.Preserve},
		Internal: state.Target{Remote: state.Preserve},
	}
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
	for _, t := range []*state.Target{&f.External, &f.Internal} {
		slices.SortFunc(t.Backends, func(a, b state.Backend) int { return a.Addr.Compare(b.Addr) })
	}
	for _, p := range sceneProtocols[proto] {
		f.Protocol = p
		v.Frontends = append(v.Frontends, f)
	}
	return nil
}

var sceneSchedulers = map[string]state.Scheduler{
	"random": state.Random, "roundrobin": state.RoundRobin, "sourcehash": state.SourceHash, "maglev": state.Maglev,
}

// addFrontend adds one word about something of the frontend.
func addFrontend(f *state.Frontend, family state.SetID, about, word string) (err error) {
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
			a := At(word, family)
			f.Sources = append(f.Sources, netip.PrefixFrom(a, a.BitLen()))
		}
	case "draining":
		b, err := SceneBackend(family, word)
		f.Draining = append(f.Draining, b.Addr)
		return err
	default:
		return fmt.Errorf("%s about %q", word, about)
	}
	return err
}

func addTarget(t *state.Target, family state.SetID, word string) error {
	switch word {
	case "masquerade":
		t.Remote = state.Masquerade
	case "drop":
		t.Miss = state.Drop
	default:
		b, err := SceneBackend(family, word)
		if err != nil {
			return err
		}
		t.Backends = append(t.Backends, b)
	}
	return nil
}

// SceneBackend reads pod1, or pod1:8081 for another port than that of backends.
func SceneBackend(family state.SetID, word string) (state.Backend, error) {
	name, number, hasPort := strings.Cut(word, ":")
	if labServes[name] == nil {
		return state.Backend{}, fmt.Errorf("no backend %s", name)
	}
	b := Backends(family, name)[0]
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
func (s *Scene) learn(words []string) error {
	if len(words) != 4 {
		return fmt.Errorf("want a client, a protocol, an address and a backend")
	}
	name, number, _ := strings.Cut(words[2], ":")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || LabAddr[name][0] == "" || LabAddr[words[0]][0] == "" || sceneProtocols[words[1]] == nil {
		return fmt.Errorf("want such as client any vip:80 pod2")
	}
	for family := range state.SetID(2) {
		b, err := SceneBackend(family, words[3])
		if err != nil {
			return err
		}
		for _, proto := range sceneProtocols[words[1]] {
			s.Knows = append(s.Knows, SceneMemory{At(words[0], family), At(name, family),
				state.Port{Proto: proto, Port: uint16(n)}, b})
		}
	}
	return nil
}

// Entry is the map of nftables that has the client, and the element.
func (m SceneMemory) Entry() (set, element string) {
	return AffinityEntry(m.Client, m.VIP, m.Port, m.Backend.Addr)
}

// addRows reads "client any vip:80 pod1 saw client or pod2 saw client".
func (s *Scene) addRows(words []string) error {
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
	if err != nil || LabAddr[name][0] == "" {
		return fmt.Errorf("%s; want such as vip:80", words[2])
	}
	outcomes, same := strings.CutPrefix(strings.Join(words[3:], " "), "one of ")
	want := strings.Split(outcomes, " or ")
	slices.Sort(want)
	for _, family := range families {
		for _, network := range networks {
			s.Rows = append(s.Rows, SceneRow{
				line: strings.Join(words, " "), From: words[0], Network: network,
				To: netip.AddrPortFrom(At(name, family), uint16(port)), Want: want, Same: same,
			})
		}
	}
	return nil
}

func (r SceneRow) String() string {
	return fmt.Sprintf("%q: %s to %s %s", r.line, r.From, r.Network, r.To)
}

func (s *Scene) View() *NodeView {
	n := LabView()
	for _, b := range s.Bound {
		n.bind(b.Iface, b.Addr)
	}
	return n
}
