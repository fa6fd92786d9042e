package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A batch is one nftables transaction: the kernel applies all of it or nothing, and no packet sees
// only a part.
type batch struct {
	e    nfnl.Encoder
	seq  uint32
	what []string // a description of each message, for errors
	last int      // where the last message begins
	// family is the family of the tables.
	family uint8
}

// setElemKeyEnd is NFTA_SET_ELEM_KEY_END of linux/netfilter/nf_tables.h, which
// x/sys does not have.
const setElemKeyEnd = 10

// verdictGoto is the code of the verdict NFT_GOTO, a negative number in network order. A goto does
// not return to the map's rule: the rest of that chain is for packets without an element.
var verdictGoto = binary.BigEndian.AppendUint32(nil, uint32(0xffff_ffff+unix.NFT_GOTO+1))

// newBatch begins a batch whose messages have numbers above seq.
func newBatch(seq uint32) *batch {
	b := &batch{seq: seq, family: unix.NFPROTO_INET}
	b.e.Header(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, seq, 0, unix.NFNL_SUBSYS_NFTABLES)
	return b
}

// empty reports whether the batch contains only its begin, so that it need not be sent.
func (b *batch) empty() bool { return len(b.what) == 0 }

// op appends one message.
func (b *batch) op(what string, kind uint8, flags uint16, body func()) {
	b.last = len(b.e.B)
	b.what = append(b.what, what)
	seq := b.seq + uint32(len(b.what))
	b.e.Message(unix.NFNL_SUBSYS_NFTABLES, kind, unix.NLM_F_REQUEST|flags, seq, b.family, body)
}

// addTable adds an empty table with a comment, as read from the kernel.
func (b *batch) addTable(userdata string) {
	b.op("add table", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func() {
		b.e.Text(unix.NFTA_TABLE_NAME, renderer.TableName)
		if userdata != "" {
			b.e.Opaque(tableUserdata, userdata)
		}
	})
}

// addChain adds a chain with its rules.
func (b *batch) addChain(name string, c chain) {
	b.addEmptyChain(name, c)
	b.addRules(name, c.rules)
}

// addEmptyChain adds a chain without its rules, which may lead to chains that do not exist yet.
func (b *batch) addEmptyChain(name string, c chain) {
	b.op("add chain "+name, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func() {
		b.e.Text(unix.NFTA_CHAIN_TABLE, renderer.TableName)
		b.e.Text(unix.NFTA_CHAIN_NAME, name)
		if c.hook != "" {
			b.e.Opaque(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, c.hook)
			b.e.Opaque(unix.NFTA_CHAIN_POLICY, c.policy)
			b.e.Opaque(unix.NFTA_CHAIN_TYPE, c.kind)
		}
	})
}

// addRules appends rules to a chain.
func (b *batch) addRules(name string, rules [][]byte) {
	for _, r := range rules {
		b.op("add rule to "+name, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, func() {
			b.e.Text(unix.NFTA_RULE_TABLE, renderer.TableName)
			b.e.Text(unix.NFTA_RULE_CHAIN, name)
			b.e.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r)
		})
	}
}

// delChain deletes a chain and its rules.
func (b *batch) delChain(name string) {
	b.op("delete chain "+name, unix.NFT_MSG_DELCHAIN, 0, func() {
		b.e.Text(unix.NFTA_CHAIN_TABLE, renderer.TableName)
		b.e.Text(unix.NFTA_CHAIN_NAME, name)
	})
}

// addMap adds a map with the attributes of another one, as read from the kernel.
func (b *batch) addMap(name, attributes string) {
	b.op("add map "+name, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func() {
		b.e.Text(unix.NFTA_SET_TABLE, renderer.TableName)
		b.e.Text(unix.NFTA_SET_NAME, name)
		// The kernel requires an ID, by which later messages of the transaction could name the set
		// before it is committed. The messages here use its name.
		b.e.Uint32(unix.NFTA_SET_ID, uint32(len(b.what)))
		for t, v := range nfnl.Attributes([]byte(attributes)) {
			if len(v) > 0 {
				b.e.Bytes(t, v)
			}
		}
	})
}

// delTable deletes a table with its content.
func (b *batch) delTable(name string) {
	b.op("delete table", unix.NFT_MSG_DELTABLE, 0, func() {
		b.e.Text(unix.NFTA_TABLE_NAME, name)
	})
}

// addElements adds elements, which must not exist; all is sorted.
func (b *batch) addElements(all []state.Element) {
	for run := range state.BySet(all) {
		b.elements("add element to ", unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, run, true)
	}
}

// delElements deletes elements, which must exist; all is sorted.
func (b *batch) delElements(all []state.Element) {
	for run := range state.BySet(all) {
		b.elements("delete element of ", unix.NFT_MSG_DELSETELEM, 0, run, false)
	}
}

// elements appends as many messages as the elements of one set need.
func (b *batch) elements(what string, kind uint8, flags uint16, run []state.Element, data bool) {
	spec := &state.Specs[run[0].Set]
	for len(run) > 0 {
		b.op(what+spec.Name, kind, flags, func() {
			b.e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName)
			b.e.Text(unix.NFTA_SET_ELEM_LIST_SET, spec.Name)
			at := b.e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for len(run) > 0 && len(b.e.B)-at < nfnl.MaxNested {
				b.element(spec, run[0], data)
				run = run[1:]
			}
			b.e.Close(at)
		})
	}
}

// element appends an element. A deletion needs only the key, because the kernel does not compare
// data.
func (b *batch) element(spec *state.SetSpec, e state.Element, data bool) {
	// In a set of intervals, each interval is two elements: its first address, and the first
	// address after it, with a flag. The last interval of the address space has no end.
	if spec.Interval {
		b.item(e.Key, 0, nil)
		if e.Data != "" {
			b.item(e.Data, unix.NFT_SET_ELEM_INTERVAL_END, nil)
		}
		return
	}
	// A range in a key of several fields (nft_set_pipapo) is one element with two keys.
	if spec.Ranges {
		b.item(e.Key, 0, func() {
			end := b.e.Open(setElemKeyEnd)
			b.e.Opaque(unix.NFTA_DATA_VALUE, e.Data)
			b.e.Close(end)
		})
		return
	}
	var value func()
	if data && len(spec.Data) > 0 {
		value = func() { b.value(spec, e.Data) }
	}
	b.item(e.Key, 0, value)
}

// item appends one entry of a list of elements.
func (b *batch) item(key string, flags uint32, value func()) {
	at := b.e.Open(unix.NFTA_LIST_ELEM)
	k := b.e.Open(unix.NFTA_SET_ELEM_KEY)
	b.e.Opaque(unix.NFTA_DATA_VALUE, key)
	b.e.Close(k)
	if flags != 0 {
		b.e.Uint32(unix.NFTA_SET_ELEM_FLAGS, flags)
	}
	if value != nil {
		value()
	}
	b.e.Close(at)
}

// value appends the value of an element of a map.
func (b *batch) value(spec *state.SetSpec, data string) {
	at := b.e.Open(unix.NFTA_SET_ELEM_DATA)
	if spec.Verdicts() {
		v := b.e.Open(unix.NFTA_DATA_VERDICT)
		b.e.Bytes(unix.NFTA_VERDICT_CODE, verdictGoto)
		b.e.Text(unix.NFTA_VERDICT_CHAIN, data)
		b.e.Close(v)
	} else {
		if spec.Numbers() {
			n, _ := state.NumberOf(data)
			data = n.Encode()
		}
		b.e.Opaque(unix.NFTA_DATA_VALUE, data)
	}
	b.e.Close(at)
}

// largeBatch is the size in bytes, some thousand elements, from which a batch is committed without
// listening.
const largeBatch = 128 << 10

func (b *batch) large() bool { return len(b.e.B) > largeBatch }

// commit sends the batch. After an error nothing of it is applied, except after nfnl.ErrUnanswered:
// then the result is unknown.
func (b *batch) commit(s *nfnl.Socket) error {
	if b.empty() {
		return nil
	}
	// Only the last message requests an acknowledgement: the kernel reports every failed message in
	// any case. nlmsg_flags follows the length and the type (struct nlmsghdr).
	flags := b.e.B[b.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	end := b.seq + uint32(len(b.what)) + 1
	b.e.Header(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, end, 0, unix.NFNL_SUBSYS_NFTABLES)
	s.Seq = end
	if err := s.Send(b.e.B); err != nil {
		return err
	}
	return b.answer(s)
}

// answer reads the kernel's answers to the batch. At the first error the kernel undid everything;
// further errors follow from it.
func (b *batch) answer(s *nfnl.Socket) error {
	acked := false
	var failed error
	for r, err := range s.Replies(false) {
		if err != nil {
			return errors.Join(nfnl.ErrUnanswered, err)
		}
		if r.Kind != unix.NLMSG_ERROR {
			continue
		}
		err := r.Errno()
		if err == nil {
			acked = true
		} else if failed == nil {
			failed = fmt.Errorf("%s: %w", b.name(r.Seq), err)
		}
	}
	if failed == nil && !acked {
		return nfnl.ErrUnanswered
	}
	return failed
}

// name describes the message that an error is about. Errors of the whole batch have the number of
// its begin or end.
func (b *batch) name(seq uint32) string {
	if i := int(seq - b.seq - 1); i >= 0 && i < len(b.what) {
		return b.what[i]
	}
	return "commit"
}
