package nfnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// SizeofGenMsg is the size of struct nfgenmsg, which precedes the attributes in every message of
// netfilter: the address family, the version, and a resource ID.
const SizeofGenMsg = 4

// Align rounds up to a multiple of 4 bytes, the alignment of messages and attributes (netlink(7)).
func Align(n int) int { return (n + 3) &^ 3 }

// An Encoder appends netlink messages to B. Its zero value is ready for use. Callers may set B
// to a buffer, or truncate it to drop what was appended last.
type Encoder struct{ B []byte }

// Message appends one message of a netfilter subsystem (NFNL_SUBSYS_*); body appends its
// attributes. flags are NLM_F_*. The kernel's reply has the same seq.
func (e *Encoder) Message(subsystem, kind uint8, flags uint16, seq uint32, family uint8, body func()) {
	start := len(e.B)
	e.Header(uint16(subsystem)<<8|uint16(kind), flags, seq, family, 0)
	body()
	binary.NativeEndian.PutUint32(e.B[start:], uint32(len(e.B)-start))
}

// Header appends nlmsghdr and nfgenmsg of a message without attributes, such as
// NFNL_MSG_BATCH_BEGIN. kind includes the subsystem; for a batch, resource is its subsystem.
func (e *Encoder) Header(kind, flags uint16, seq uint32, family uint8, resource uint16) {
	e.B = binary.NativeEndian.AppendUint32(e.B, unix.SizeofNlMsghdr+SizeofGenMsg)
	e.B = binary.NativeEndian.AppendUint16(e.B, kind)
	e.B = binary.NativeEndian.AppendUint16(e.B, flags)
	e.B = binary.NativeEndian.AppendUint32(e.B, seq)
	e.B = binary.NativeEndian.AppendUint32(e.B, 0)
	e.B = append(e.B, family, unix.NFNETLINK_V0)
	e.B = binary.BigEndian.AppendUint16(e.B, resource)
}

// Raw appends bytes as they are: attributes that are encoded already.
func (e *Encoder) Raw(b []byte) { e.B = append(e.B, b...) }

// Bytes appends an attribute, padded to netlink's alignment. data may have 65,531 bytes at most.
func (e *Encoder) Bytes(t uint16, data []byte) { appendAttribute(e, t, data) }

// Text appends a string attribute, terminated by a zero byte.
func (e *Encoder) Text(t uint16, s string) { appendAttribute(e, t, s, 0) }

// Opaque appends an attribute with the bytes of s, without termination. It is Bytes for keys of
// maps, which are strings, without a copy.
func (e *Encoder) Opaque(t uint16, s string) { appendAttribute(e, t, s) }

// Uint32 appends a number in network byte order, as nftables and conntrack expect it.
func (e *Encoder) Uint32(t uint16, n uint32) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	appendAttribute(e, t, b[:])
}

// appendAttribute appends the header of an attribute, data, end, and padding. The header is in
// the byte order of the host, and its length excludes the padding.
func appendAttribute[T string | []byte](e *Encoder, t uint16, data T, end ...byte) {
	length := unix.SizeofNlAttr + len(data) + len(end)
	e.B = binary.NativeEndian.AppendUint16(e.B, uint16(length))
	e.B = binary.NativeEndian.AppendUint16(e.B, t)
	e.B = append(e.B, data...)
	e.B = append(e.B, end...)
	for range Align(length) - length {
		e.B = append(e.B, 0)
	}
}

// Open begins a nested attribute and returns its start, for Close. Everything that is appended
// until then is in it.
func (e *Encoder) Open(t uint16) (start int) {
	start = len(e.B)
	e.B = binary.NativeEndian.AppendUint16(e.B, 0)
	e.B = binary.NativeEndian.AppendUint16(e.B, t|unix.NLA_F_NESTED)
	return start
}

// Close ends the nested attribute that begins at start, as Open returned it. The attribute must
// be shorter than 64 KiB, or its length overflows: see MaxNested.
func (e *Encoder) Close(start int) {
	binary.NativeEndian.PutUint16(e.B[start:], uint16(len(e.B)-start))
}

// nlaTypeMask removes the flags from an attribute's type.
const nlaTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Attributes yields the types and values of the attributes in b, up to the first that is
// malformed. Types have no flags such as NLA_F_NESTED. Values are parts of b, not copies.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofNlAttr || length > len(b) {
				return
			}
			t := binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask
			if !yield(t, b[unix.SizeofNlAttr:length:length]) {
				return
			}
			b = b[min(Align(length), len(b)):]
		}
	}
}

// Attribute returns the value at a path of nested attribute types, the first of each type; nil
// if one is missing. The value is a part of b, not a copy.
func Attribute(b []byte, path ...uint16) []byte {
	for _, want := range path {
		var found []byte
		for t, v := range Attributes(b) {
			if t == want {
				found = v
				break
			}
		}
		if found == nil {
			return nil
		}
		b = found
	}
	return b
}

// CString returns the text before the terminating zero byte, or all of b without one.
func CString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Uint32 decodes a number in network byte order; 0 if b does not have 4 bytes.
func Uint32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
