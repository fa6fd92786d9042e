package proxy

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A setID names one set or map of the table. Those for IPv6 follow the one
// for IPv4, so that base+family is the one for an address.
type setID uint8

const (
	setVIPs      setID = iota * 2 // vips4, vips6
	setOwned                      // owned4, owned6
	setClients                    // clients4, clients6
	setExtSvc                     // xsvc4, xsvc6
	setIntSvc                     // isvc4, isvc6
	setExtFenced                  // xfenced4, xfenced6
	setIntFenced                  // ifenced4, ifenced6
	setAllowed                    // allowed4, allowed6
	setExtEps                     // xeps4, xeps6
	setIntEps                     // ieps4, ieps6
	setExtSlots                   // xslots4, xslots6
	setIntSlots                   // islots4, islots6
	setExtMasq                    // xmasq4, xmasq6
	setIntMasq                    // imasq4, imasq6
	setDrain                      // drain4, drain6
	setHairpin                    // hair4, hair6
	setExtSched                   // xsched4, xsched6
	setIntSched                   // isched4, isched6
	setExtBack                    // xback4, xback6
	setIntBack                    // iback4, iback6
	setExpiring                   // expiring4, expiring6
	setLearn                      // learn4, learn6
	setSticky                     // sticky4, sticky6
	setLate                       // late4, late6
	setExtTurn                    // xturn4, xturn6
	setIntTurn                    // iturn4, iturn6
	setNever                      // never4, never6
	setFrom                       // from4, from6
	setClientIf                   // clientifs
	setSources   = setClientIf + 1
	setMarks     = setClientIf + 2
	setCount     = setClientIf + 3

	// What follows is no part of what a State means: the kernel learns it, or it
	// follows from the chains that there are.
	setAff = setCount // aff4, aff6

	setExtSvcTo    = setAff + 2 // xsvcto
	setIntSvcTo    = setAff + 3 // isvcto
	setExtFencedTo = setAff + 4 // xfencedto
	setIntFencedTo = setAff + 5 // ifencedto
	setExtSchedTo  = setAff + 6 // xschedto
	setIntSchedTo  = setAff + 7 // ischedto
	setsAll        = setAff + 8
)

// A field is the type of one part of a key or a value.
type field uint8

const (
	fieldAddr4 field = iota
	fieldAddr6
	fieldProto
	fieldPort
	fieldSlot
	fieldIfname
	fieldFamily
	fieldNumber
	fieldVerdict
)

// size is the number of bytes in the kernel, where every part of a
// concatenation is padded to 4.
func (f field) size() int {
	switch f {
	case fieldAddr6, fieldIfname:
		return 16
	case fieldFamily: // never part of a concatenation
		return 1
	case fieldAddr4, fieldProto, fieldPort, fieldSlot, fieldNumber:
		return 4
	default: // a verdict is no plain data
		return 0
	}
}

// fieldsSize is the number of bytes of a concatenation.
func fieldsSize(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.size()
	}
	return n
}

// A setSpec is what must be known of a set to read and write its elements.
type setSpec struct {
	name     string
	key      []field
	data     []field // empty for a set
	interval bool
	ranges   bool // a concatenation whose last part is a range
}

func (s *setSpec) verdicts() bool { return len(s.data) == 1 && s.data[0] == fieldVerdict }

func (s *setSpec) numbers() bool { return len(s.data) == 1 && s.data[0] == fieldNumber }

// numberedSets are the maps of what numbers stand for, and the map that has them.
var numberedSets = map[setID]setID{
	setExtSvcTo: setExtSvc, setIntSvcTo: setIntSvc, setExtFencedTo: setExtFenced,
	setIntFencedTo: setIntFenced, setExtSchedTo: setExtSched, setIntSchedTo: setIntSched,
}

// specs describe the sets and maps of ruleset.nft.
var specs = buildSpecs()

func buildSpecs() [setsAll]setSpec {
	var all [setsAll]setSpec
	for family, addr := range []field{fieldAddr4, fieldAddr6} {
		frontend := []field{addr, fieldProto, fieldPort}
		slot := append(slices.Clone(frontend), fieldSlot)
		backend := []field{addr, fieldPort}
		pair := append(slices.Clone(frontend), backend...)
		for id, s := range map[setID]setSpec{
			setVIPs:      {name: "vips", key: []field{addr}},
			setOwned:     {name: "owned", key: []field{addr}, interval: true},
			setClients:   {name: "clients", key: []field{addr}, interval: true},
			setExtSvc:    {name: "xsvc", key: frontend, data: []field{fieldNumber}},
			setIntSvc:    {name: "isvc", key: frontend, data: []field{fieldNumber}},
			setExtFenced: {name: "xfenced", key: frontend, data: []field{fieldNumber}},
			setIntFenced: {name: "ifenced", key: frontend, data: []field{fieldNumber}},
			setAllowed:   {name: "allowed", key: append(slices.Clone(frontend), addr), ranges: true},
			setExtEps:    {name: "xeps", key: slot, data: backend},
			setIntEps:    {name: "ieps", key: slot, data: backend},
			setExtSlots:  {name: "xslots", key: slot, data: backend},
			setIntSlots:  {name: "islots", key: slot, data: backend},
			setExtMasq:   {name: "xmasq", key: pair},
			setIntMasq:   {name: "imasq", key: pair},
			setDrain:     {name: "drain", key: pair},
			setHairpin:   {name: "hair", key: []field{addr, addr, addr}},
			setExtSched:  {name: "xsched", key: frontend, data: []field{fieldNumber}},
			setIntSched:  {name: "isched", key: frontend, data: []field{fieldNumber}},
			setExtTurn:   {name: "xturn", key: frontend, data: []field{fieldVerdict}},
			setIntTurn:   {name: "iturn", key: frontend, data: []field{fieldVerdict}},
			setExtBack:   {name: "xback", key: pair},
			setIntBack:   {name: "iback", key: pair},
			setExpiring:  {name: "expiring", key: pair},
			setLearn:     {name: "learn", key: frontend, data: []field{fieldVerdict}},
			setSticky:    {name: "sticky", key: []field{addr}},
			setLate:      {name: "late", key: []field{addr}},
			setAff:       {name: "aff", key: append([]field{addr}, frontend...), data: backend},
			setNever:     {name: "never", key: []field{addr}, interval: true},
			setFrom:      {name: "from", key: []field{fieldFamily}, data: []field{addr}},
		} {
			s.name += [...]string{"4", "6"}[family]
			all[id+setID(family)] = s
		}
	}
	all[setSources] = setSpec{name: "sources", key: []field{fieldFamily}, data: []field{fieldVerdict}}
	all[setMarks] = setSpec{name: "marks", key: []field{fieldFamily}, data: []field{fieldVerdict}}
	for id, of := range numberedSets {
		all[id] = setSpec{name: strings.TrimSuffix(all[of].name, "4") + "to", key: []field{fieldNumber}, data: []field{fieldVerdict}}
	}
	all[setClientIf] = setSpec{name: "clientifs", key: []field{fieldIfname}, interval: true}
	return all
}

// family is 0 for IPv4 and 1 for IPv6: the distance between their sets.
func family(a netip.Addr) setID {
	if a.Is4() {
		return 0
	}
	return 1
}

// An element is one element of a set or map, in the kernel's encoding.
type element struct {
	set setID
	key string
	// data is the value in a map, the name of the chain to go to in a map of
	// verdicts or numbers, and in a set of intervals the first key behind the interval,
	// which begins at key; empty there when the interval has no end. In a
	// set of ranges it is the last key of the range that begins at key.
	data string
}

// compare orders by set and key.
func (e element) compare(o element) int {
	return cmp.Or(cmp.Compare(e.set, o.set), strings.Compare(e.key, o.key))
}

// An encoding builds the bytes of a key or value.
type encoding []byte

func (b encoding) addr(a netip.Addr) encoding {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func (b encoding) proto(p Protocol) encoding { return append(b, byte(p), 0, 0, 0) }

func (b encoding) port(n uint16) encoding {
	return append(binary.BigEndian.AppendUint16(b, n), 0, 0)
}

// slot is in the order of bytes of the host, as numgen leaves it in a register.
func (b encoding) slot(n int) encoding { return binary.NativeEndian.AppendUint32(b, uint32(n)) }

// modulus is that of numgen in a rule.
func (b encoding) modulus(n int) encoding { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func (b encoding) addrPort(a netip.AddrPort) encoding { return b.addr(a.Addr()).port(a.Port()) }

// ifname is the name of an interface, padded with zeros.
func (b encoding) ifname(name string) encoding {
	var v [16]byte
	copy(v[:], name)
	return append(b, v[:]...)
}

// String is the element as nft writes it: "xsvc4 { 192.0.2.1 . tcp . 80 : 10:2 }".
func (e element) String() string {
	return specs[e.set].name + " { " + e.text() + " }"
}

// text is what stands between the braces.
func (e element) text() string {
	s := &specs[e.set]
	switch {
	case s.interval:
		return intervalText(s.key[0], e.key, e.data)
	case s.ranges:
		last := len(s.key) - 1
		n := len(e.key) - s.key[last].size()
		return fieldsText(s.key[:last], e.key[:n]) + " . " + intervalText(s.key[last], e.key[n:], successor(e.data[n:]))
	case s.verdicts():
		return fieldsText(s.key, e.key) + " : goto " + e.data
	case s.numbers():
		n, _ := numberOf(e.data)
		return fieldsText(s.key, e.key) + " : " + n.String()
	case len(s.data) > 0:
		return fieldsText(s.key, e.key) + " : " + fieldsText(s.data, e.data)
	default:
		return fieldsText(s.key, e.key)
	}
}

func fieldsText(fields []field, b string) string {
	var out []string
	for _, f := range fields {
		if len(b) < f.size() {
			return fmt.Sprintf("%x", b)
		}
		out = append(out, fieldText(f, b[:f.size()]))
		b = b[f.size():]
	}
	return strings.Join(out, " . ")
}

func fieldText(f field, b string) string {
	switch f {
	case fieldAddr4, fieldAddr6:
		a, _ := netip.AddrFromSlice([]byte(b))
		return a.String()
	case fieldProto:
		return Protocol(b[0]).String()
	case fieldPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16([]byte(b))))
	case fieldFamily:
		return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[b[0]]
	case fieldNumber:
		return parseNumber(b).String()
	case fieldSlot:
		return strconv.Itoa(int(binary.NativeEndian.Uint32([]byte(b))))
	default:
		return `"` + strings.TrimRight(b, "\x00") + `"`
	}
}

// intervalText writes [start, end) as a prefix where it is one.
func intervalText(f field, start, end string) string {
	if f == fieldIfname {
		name := strings.TrimRight(start, "\x00")
		if end == successor(start) {
			return `"` + name + `"`
		}
		return `"` + name + `*"`
	}
	from, _ := netip.AddrFromSlice([]byte(start))
	for bits := range from.BitLen() + 1 {
		p := netip.PrefixFrom(from, bits)
		if p.Masked() == p && behind(p) == end {
			return p.String()
		}
	}
	to, _ := netip.AddrFromSlice([]byte(end))
	return from.String() + "-" + to.Prev().String()
}

// successor is the next key of the same length; empty when there is none.
func successor(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return string(b)
		}
	}
	return ""
}

// lastAddr is the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// behind is the first key behind a prefix; empty when it reaches to the end.
func behind(p netip.Prefix) string {
	return successor(string(lastAddr(p).AsSlice()))
}

// prefixElement is an interval that holds a prefix.
func prefixElement(set setID, p netip.Prefix) element {
	return element{
		set:  set + family(p.Addr()),
		key:  string(encoding(nil).addr(p.Masked().Addr())),
		data: behind(p),
	}
}

// ifnameElement is an interval that holds one interface, or with wildcard all
// whose names begin with name.
func ifnameElement(name string, wildcard bool) element {
	key := string(encoding(nil).ifname(name))
	end := successor(key)
	if wildcard {
		end = string(encoding(nil).ifname(successor(name)))
	}
	return element{set: setClientIf, key: key, data: end}
}

// pairIntervals joins the starts and ends of intervals, which the kernel lists
// one by one, and sorts them. An end that no start precedes is the placeholder
// that nft puts at zero.
func pairIntervals(starts []element, ends []string) []element {
	slices.SortFunc(starts, element.compare)
	slices.Sort(ends)
	for i := range starts {
		next := successor(starts[i].key)
		j, _ := slices.BinarySearch(ends, next)
		if next != "" && j < len(ends) {
			starts[i].data = ends[j]
		}
	}
	return starts
}

// frontendOf is the part of a key that names a frontend: VIP, protocol, port.
func frontendOf(set setID, key string) (vip netip.Addr, proto Protocol, port uint16) {
	n := specs[set].key[0].size()
	vip, _ = netip.AddrFromSlice([]byte(key[:n]))
	return vip, Protocol(key[n]), binary.BigEndian.Uint16([]byte(key[n+4:]))
}

// backendOf decodes the value of a map of backends.
func backendOf(data string) netip.AddrPort {
	n := len(data) - fieldPort.size()
	a, _ := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(data[n:])))
}

// elementsText is one element a line, for people and goldens.
func elementsText(all []element) string {
	var b bytes.Buffer
	for _, e := range all {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// bySet yields the runs of a sorted list that belong to one set.
func bySet(all []element) iter.Seq[[]element] {
	return func(yield func([]element) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].set == all[0].set {
				n++
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}
