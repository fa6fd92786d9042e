package state

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// A gotoNumber stands for a chain in the maps of frontends. The kernel looks at all
// verdicts of all maps whenever one is added, so that a frontend which says by data
// where it leads costs nothing while others change; xsvcto and its kin alone have
// verdicts. A rule has no place but the packet's priority to take a value from one
// map to another, hence a number has the form of a class of tc, MAJOR:MINOR, both
// hexadecimal.
type gotoNumber uint32

// FixedNumbers are the chains in the text that frontends go to: 1:1, 1:2 and so on.
var FixedNumbers = []string{
	chainRefuse, chainIgnore,
	SplitPrefix + chainRefuse, SplitPrefix + chainIgnore,
	External.SourceCheck, Internal.SourceCheck,
	External.Sticky, Internal.Sticky, SplitPrefix + sticky,
	External.Turn, Internal.Turn, SplitPrefix + turn,
}

const fixedMajor = 1

// sideMajors is the first digit of a count chain's major number; its second one is
// the place of the schedule among schedules, and the minor the number of slots.
var sideMajors = map[string]gotoNumber{External.Prefix: 1, Internal.Prefix: 2, SplitPrefix: 3}

// NumberOf is the number of a chain; none for one that no number leads to.
func NumberOf(chain string) (n gotoNumber, ok bool) {
	if i := slices.Index(FixedNumbers, chain); i >= 0 {
		return fixedMajor<<16 | gotoNumber(i+1), true
	}
	c, ok := ParseCountChain(chain)
	if !ok || c.owner != "" {
		return 0, false
	}
	major := sideMajors[c.Side]<<4 | gotoNumber(slices.Index(Schedules, c.Schedule))
	return major<<16 | gotoNumber(c.Slots), true
}

// Chain is the name of the chain that n stands for; one that matches nothing if there
// is none.
func (n gotoNumber) Chain() string {
	major, minor := n>>16, n&0xffff
	if major == fixedMajor && minor >= 1 && int(minor) <= len(FixedNumbers) {
		return FixedNumbers[minor-1]
	}
	for side, digit := range sideMajors {
		if major>>4 == digit && int(major&0xf) < len(Schedules) && minor > 0 {
			return CountChain{Side: side, Schedule: Schedules[major&0xf], Slots: int(minor)}.Name()
		}
	}
	return "?" + n.String()
}

// String is the number as nft writes it.
func (n gotoNumber) String() string { return fmt.Sprintf("%x:%x", uint32(n>>16), uint32(n&0xffff)) }

// Encode is in the order of bytes of the host, as a packet has its priority.
func (n gotoNumber) Encode() string { return string(binary.NativeEndian.AppendUint32(nil, uint32(n))) }

func ParseNumber(b string) gotoNumber { return gotoNumber(binary.NativeEndian.Uint32([]byte(b))) }

// leads are the maps that a chain's number is in. There is one for each map of
// frontends: the kernel takes no rules in which a packet could go round, whatever is
// in the maps, and source ranges that could lead to source ranges are a round.
func leads(chain string) []SetID {
	x, i := []SetID{SetExtSvcTo, setExtInRangeTo, setExtSchedTo}, []SetID{setIntSvcTo, setIntInRangeTo, setIntSchedTo}
	c, counts := ParseCountChain(chain)
	switch {
	case chain == chainRefuse, chain == chainIgnore:
		return slices.Concat(x[:2], i[:2])
	case chain == External.SourceCheck:
		return x[:1]
	case chain == Internal.SourceCheck:
		return i[:1]
	case chain == Internal.Sticky:
		return i[:2]
	case chain == Internal.Turn, c.Side == Internal.Prefix:
		return i
	case chain == External.Turn:
		return x
	case counts && c.Side == External.Prefix && c.Schedule.Table && c.Slots > 1: // internal clients may use it
		return slices.Concat(x, i)
	case counts && c.Side == External.Prefix:
		return x
	default: // xsticky, and what splits
		return x[:2]
	}
}

// LeadElements are the elements of these maps for the chains that numbers lead to,
// sorted.
func LeadElements(names []string) []Element {
	var all []Element
	for _, name := range names {
		n, ok := NumberOf(name)
		if !ok {
			continue
		}
		for _, set := range leads(name) {
			all = append(all, Element{Set: set, Key: n.Encode(), Data: name})
		}
	}
	slices.SortFunc(all, Element.Compare)
	return all
}
