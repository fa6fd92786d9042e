package state

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// A gotoNumber stands for a chain in the maps of frontends. Whenever a verdict is added to any map,
// the kernel checks the verdicts of all maps. If frontends refer to chains by plain data, they cost
// nothing when others change; only xsvcto and similar maps have verdicts. A rule can pass a value
// from one map to another only in the packet's priority. That has the form of a tc class,
// MAJOR:MINOR in hexadecimal, so gotoNumbers have it too.
type gotoNumber uint32

// FixedNumbers are the chains of ruleset.nft that frontends go to: 1:1, 1:2 and so on.
var FixedNumbers = []string{
	chainRefuse, chainIgnore,
	SplitPrefix + chainRefuse, SplitPrefix + chainIgnore,
	External.SourceCheck, Internal.SourceCheck,
	External.Sticky, Internal.Sticky, SplitPrefix + sticky,
	External.RoundRobin, Internal.RoundRobin, SplitPrefix + roundRobin,
}

const fixedMajor = 1

// sideMajors is the first digit of a count chain's major number. The second digit is the index in
// Schedules, and the minor number is the number of slots.
var sideMajors = map[string]gotoNumber{External.Prefix: 1, Internal.Prefix: 2, SplitPrefix: 3}

// NumberOf returns the number of a chain; ok is false if it has none.
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

// Chain returns the name of the chain for n; if there is none, a name that matches nothing.
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

// String writes the number as nft does.
func (n gotoNumber) String() string { return fmt.Sprintf("%x:%x", uint32(n>>16), uint32(n&0xffff)) }

// Encode uses host byte order, as the packet's priority does.
func (n gotoNumber) Encode() string { return string(binary.NativeEndian.AppendUint32(nil, uint32(n))) }

func ParseNumber(b string) gotoNumber { return gotoNumber(binary.NativeEndian.Uint32([]byte(b))) }

// leads returns the maps that contain a chain's number. Each map of frontends has its own: the
// kernel rejects rules in which a packet could loop, regardless of the maps' content, and source
// ranges that could lead to source ranges are a loop.
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
	case chain == Internal.RoundRobin, c.Side == Internal.Prefix:
		return i
	case chain == External.RoundRobin:
		return x
	case counts && c.Side == External.Prefix && c.Schedule.Table && c.Slots > 1: // internal clients may use it
		return slices.Concat(x, i)
	case counts && c.Side == External.Prefix:
		return x
	default: // xsticky, and chains that split internal from external clients
		return x[:2]
	}
}

// LeadElements returns the elements of these maps for the chains that have numbers, sorted.
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
