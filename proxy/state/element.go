package state

import (
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

// A SetID identifies one set or map of the table. The one for IPv6 follows the one for IPv4, so
// base+family is the set for an address.
type SetID uint8

const (
	SetVIPs          SetID = iota * 2 // vips4, vips6
	SetOwned                          // owned4, owned6
	SetClients                        // clients4, clients6
	SetExtSvc                         // xsvc4, xsvc6
	SetIntSvc                         // isvc4, isvc6
	SetExtInRange                     // xinrange4, xinrange6
	SetIntInRange                     // iinrange4, iinrange6
	SetAllowed                        // allowed4, allowed6
	SetExtEps                         // xeps4, xeps6
	SetIntEps                         // ieps4, ieps6
	setExtSlots                       // xslots4, xslots6
	setIntSlots                       // islots4, islots6
	setExtMasq                        // xmasq4, xmasq6
	setIntMasq                        // imasq4, imasq6
	SetDrain                          // drain4, drain6
	setHairpin                        // hair4, hair6
	SetExtSched                       // xsched4, xsched6
	SetIntSched                       // isched4, isched6
	SetTables                         // tables4, tables6
	setExtTable                       // xtable4, xtable6
	setIntTable                       // itable4, itable6
	setExtBack                        // xback4, xback6
	setIntBack                        // iback4, iback6
	setLearn                          // learn4, learn6
	setPostrouting                    // postrouting4, postrouting6
	SetExtRoundRobin                  // xroundrobin4, xroundrobin6
	SetIntRoundRobin                  // iroundrobin4, iroundrobin6
	SetNever                          // never4, never6
	SetFrom                           // from4, from6
	SetReplies                        // replies4, replies6
	SetRepliers                       // repliers4, repliers6
	SetClientIf                       // clientifs
	SetSources       = SetClientIf + 1
	SetMarks         = SetClientIf + 2
	SetCount         = SetClientIf + 3

	// The following maps are not part of a State: they follow from the existing chains.
	SetExtSvcTo     = SetCount     // xsvcto
	setIntSvcTo     = SetCount + 1 // isvcto
	setExtInRangeTo = SetCount + 2 // xinrangeto
	setIntInRangeTo = SetCount + 3 // iinrangeto
	setExtSchedTo   = SetCount + 4 // xschedto
	setIntSchedTo   = SetCount + 5 // ischedto
	SetsAll         = SetCount + 6
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
	FieldNumber
	fieldID
	fieldVerdict
)

// Size is the number of bytes in the kernel, which pads each part of a concatenation to a multiple
// of 4.
func (f field) Size() int {
	switch f {
	case fieldAddr6, fieldIfname:
		return 16
	case fieldFamily: // never part of a concatenation
		return 1
	case fieldAddr4, fieldProto, fieldPort, fieldSlot, FieldNumber, fieldID:
		return 4
	default: // a verdict is not plain data
		return 0
	}
}

// FieldsSize is the number of bytes of a concatenation.
func FieldsSize(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.Size()
	}
	return n
}

// A SetSpec describes a set, for reading and writing its elements.
type SetSpec struct {
	Name     string
	Key      []field
	Data     []field // empty for a set
	Interval bool
	Ranges   bool // a concatenation whose last part is a range
}

func (s *SetSpec) Verdicts() bool { return len(s.Data) == 1 && s.Data[0] == fieldVerdict }

func (s *SetSpec) Numbers() bool { return len(s.Data) == 1 && s.Data[0] == FieldNumber }

// NumberedSets are the maps whose values are numbers of chains, each with the map from these
// numbers to verdicts.
var NumberedSets = map[SetID]SetID{
	SetExtSvcTo: SetExtSvc, setIntSvcTo: SetIntSvc, setExtInRangeTo: SetExtInRange,
	setIntInRangeTo: SetIntInRange, setExtSchedTo: SetExtSched, setIntSchedTo: SetIntSched,
}

// Specs describe the sets and maps of ruleset.nft.
var Specs = buildSpecs()

func buildSpecs() [SetsAll]SetSpec {
	var all [SetsAll]SetSpec
	for family, addr := range []field{fieldAddr4, fieldAddr6} {
		frontend := []field{addr, fieldProto, fieldPort}
		slot := append(slices.Clone(frontend), fieldSlot)
		choice := append(slices.Clone(frontend), fieldID)
		backend := []field{addr, fieldPort}
		pair := append(slices.Clone(frontend), backend...)
		for id, s := range map[SetID]SetSpec{
			SetVIPs:          {Name: "vips", Key: []field{addr}},
			SetOwned:         {Name: "owned", Key: []field{addr}, Interval: true},
			SetClients:       {Name: "clients", Key: []field{addr}, Interval: true},
			SetExtSvc:        {Name: "xsvc", Key: frontend, Data: []field{FieldNumber}},
			SetIntSvc:        {Name: "isvc", Key: frontend, Data: []field{FieldNumber}},
			SetExtInRange:    {Name: "xinrange", Key: frontend, Data: []field{FieldNumber}},
			SetIntInRange:    {Name: "iinrange", Key: frontend, Data: []field{FieldNumber}},
			SetAllowed:       {Name: "allowed", Key: append(slices.Clone(frontend), addr), Ranges: true},
			SetExtEps:        {Name: "xeps", Key: slot, Data: backend},
			SetIntEps:        {Name: "ieps", Key: slot, Data: backend},
			setExtSlots:      {Name: "xslots", Key: slot, Data: backend},
			setIntSlots:      {Name: "islots", Key: slot, Data: backend},
			setExtMasq:       {Name: "xmasq", Key: pair},
			setIntMasq:       {Name: "imasq", Key: pair},
			SetDrain:         {Name: "drain", Key: pair},
			setHairpin:       {Name: "hair", Key: []field{addr, addr, addr}},
			SetExtSched:      {Name: "xsched", Key: frontend, Data: []field{FieldNumber}},
			SetIntSched:      {Name: "isched", Key: frontend, Data: []field{FieldNumber}},
			SetExtRoundRobin: {Name: "xroundrobin", Key: frontend, Data: []field{fieldVerdict}},
			SetIntRoundRobin: {Name: "iroundrobin", Key: frontend, Data: []field{fieldVerdict}},
			setExtTable:      {Name: "xtable", Key: frontend, Data: []field{fieldID}},
			setIntTable:      {Name: "itable", Key: frontend, Data: []field{fieldID}},
			SetTables:        {Name: "tables", Key: []field{addr, fieldID, fieldSlot}, Data: []field{fieldID}},
			setExtBack:       {Name: "xback", Key: choice, Data: backend},
			setIntBack:       {Name: "iback", Key: choice, Data: backend},
			setLearn:         {Name: "learn", Key: frontend, Data: []field{fieldVerdict}},
			setPostrouting:   {Name: "postrouting", Key: []field{addr}},
			SetNever:         {Name: "never", Key: []field{addr}, Interval: true},
			SetFrom:          {Name: "from", Key: []field{fieldFamily}, Data: []field{addr}},
			SetReplies:       {Name: "replies", Key: []field{addr, fieldProto, fieldPort}},
			SetRepliers:      {Name: "repliers", Key: []field{addr}},
		} {
			s.Name += [...]string{"4", "6"}[family]
			all[id+SetID(family)] = s
		}
	}
	all[SetSources] = SetSpec{Name: "sources", Key: []field{fieldFamily}, Data: []field{fieldVerdict}}
	all[SetMarks] = SetSpec{Name: "marks", Key: []field{fieldFamily}, Data: []field{fieldVerdict}}
	for id, of := range NumberedSets {
		all[id] = SetSpec{
			Name: strings.TrimSuffix(all[of].Name, "4") + "to", Key: []field{FieldNumber}, Data: []field{fieldVerdict},
		}
	}
	all[SetClientIf] = SetSpec{Name: "clientifs", Key: []field{fieldIfname}, Interval: true}
	return all
}

// Family is 0 for IPv4 and 1 for IPv6: the distance between their sets.
func Family(a netip.Addr) SetID {
	if a.Is4() {
		return 0
	}
	return 1
}

// An Element is one element of a set or map, encoded as in the kernel.
type Element struct {
	Set SetID
	Key string
	// Data is the value in a map. In a map of verdicts or numbers it is the name of the target
	// chain. In a set of intervals it is the first key after the interval, which begins at Key;
	// empty if the interval has no end. In a set of ranges it is the last key of the range, which
	// begins at Key.
	Data string
}

// Compare orders by set and key.
func (e Element) Compare(o Element) int {
	return cmp.Or(cmp.Compare(e.Set, o.Set), strings.Compare(e.Key, o.Key))
}

// An Encoding builds the bytes of a key or value.
type Encoding []byte

func (b Encoding) Addr(a netip.Addr) Encoding {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func (b Encoding) Proto(p Protocol) Encoding { return append(b, byte(p), 0, 0, 0) }

func (b Encoding) Port(n uint16) Encoding {
	return append(binary.BigEndian.AppendUint16(b, n), 0, 0)
}

// Slot is in host byte order, as numgen leaves it in a register.
func (b Encoding) Slot(n int) Encoding { return binary.NativeEndian.AppendUint32(b, uint32(n)) }

// ID is the number of a backend or table. Rules keep it in the packet's priority, in host byte order.
func (b Encoding) ID(n uint32) Encoding { return binary.NativeEndian.AppendUint32(b, n) }

// Modulus is the modulus of numgen in a rule.
func (b Encoding) Modulus(n int) Encoding { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func (b Encoding) AddrPort(a netip.AddrPort) Encoding { return b.Addr(a.Addr()).Port(a.Port()) }

// ifname is the name of an interface, padded with zeros.
func (b Encoding) ifname(name string) Encoding {
	var v [16]byte
	copy(v[:], name)
	return append(b, v[:]...)
}

// String writes the element as nft does: "xsvc4 { 192.0.2.1 . tcp . 80 : 10:2 }".
func (e Element) String() string {
	return Specs[e.Set].Name + " { " + e.Text() + " }"
}

// Text is the part between the braces.
func (e Element) Text() string {
	s := &Specs[e.Set]
	switch {
	case s.Interval:
		return intervalText(s.Key[0], e.Key, e.Data)
	case s.Ranges:
		last := len(s.Key) - 1
		n := len(e.Key) - s.Key[last].Size()
		return fieldsText(s.Key[:last], e.Key[:n]) + " . " + intervalText(s.Key[last], e.Key[n:], successor(e.Data[n:]))
	case s.Verdicts():
		return fieldsText(s.Key, e.Key) + " : goto " + e.Data
	case s.Numbers():
		n, _ := NumberOf(e.Data)
		return fieldsText(s.Key, e.Key) + " : " + n.String()
	case len(s.Data) > 0:
		return fieldsText(s.Key, e.Key) + " : " + fieldsText(s.Data, e.Data)
	default:
		return fieldsText(s.Key, e.Key)
	}
}

func fieldsText(fields []field, b string) string {
	var out []string
	for _, f := range fields {
		if len(b) < f.Size() {
			return fmt.Sprintf("%x", b)
		}
		out = append(out, fieldText(f, b[:f.Size()]))
		b = b[f.Size():]
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
	case FieldNumber, fieldID:
		return ParseNumber(b).String()
	case fieldSlot:
		return strconv.Itoa(int(binary.NativeEndian.Uint32([]byte(b))))
	default:
		return `"` + strings.TrimRight(b, "\x00") + `"`
	}
}

// intervalText writes [start, end), as a prefix if it is one.
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

// successor returns the next key of the same length; empty if there is none.
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

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// behind returns the first key after a prefix; empty if the prefix reaches the last address.
func behind(p netip.Prefix) string {
	return successor(string(lastAddr(p).AsSlice()))
}

// prefixElement returns the interval of a prefix.
func prefixElement(set SetID, p netip.Prefix) Element {
	return Element{
		Set:  set + Family(p.Addr()),
		Key:  string(Encoding(nil).Addr(p.Masked().Addr())),
		Data: behind(p),
	}
}

// ifnameElement returns the interval of one interface name or, with wildcard, of all names with
// that prefix.
func ifnameElement(name string, wildcard bool) Element {
	key := string(Encoding(nil).ifname(name))
	end := successor(key)
	if wildcard {
		end = string(Encoding(nil).ifname(successor(name)))
	}
	return Element{Set: SetClientIf, Key: key, Data: end}
}

// PairIntervals joins the starts and ends of intervals, which the kernel lists separately, and
// sorts them. An end without a start is nft's placeholder at zero.
func PairIntervals(starts []Element, ends []string) []Element {
	slices.SortFunc(starts, Element.Compare)
	slices.Sort(ends)
	for i := range starts {
		next := successor(starts[i].Key)
		j, _ := slices.BinarySearch(ends, next)
		if next != "" && j < len(ends) {
			starts[i].Data = ends[j]
		}
	}
	return starts
}

// FrontendOf decodes the part of a key that identifies a frontend: VIP, protocol, port.
func FrontendOf(set SetID, key string) (vip netip.Addr, proto Protocol, port uint16) {
	n := Specs[set].Key[0].Size()
	vip, _ = netip.AddrFromSlice([]byte(key[:n]))
	return vip, Protocol(key[n]), binary.BigEndian.Uint16([]byte(key[n+4:]))
}

// BackendOf decodes the value of a map of backends.
func BackendOf(data string) netip.AddrPort {
	n := len(data) - fieldPort.Size()
	a, _ := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(data[n:])))
}

// BySet yields the elements of a sorted list, one set at a time.
func BySet(all []Element) iter.Seq[[]Element] {
	return func(yield func([]Element) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].Set == all[0].Set {
				n++
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}
