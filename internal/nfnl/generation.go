package nfnl

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// ErrUnanswered means that the kernel neither refused nor confirmed a request.
var ErrUnanswered = errors.New("the kernel did not answer")

// MaxNested bounds a list in one attribute, whose length has 16 bits.
const MaxNested = 60 << 10

// Generation is the number of transactions, of any program, that changed nftables in this
// namespace.
func (s *Socket) Generation() (uint32, error) {
	s.Seq++
	var e Encoder
	e.Message(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST, s.Seq, unix.AF_UNSPEC, func() {})
	if err := s.Send(e.B); err != nil {
		return 0, err
	}
	for r, err := range s.Replies(false) {
		if err != nil {
			return 0, err
		}
		if r.Kind == unix.NLMSG_ERROR {
			return 0, r.Errno()
		}
		if id := Attribute(r.Data[min(SizeofGenMsg, len(r.Data)):], unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, ErrUnanswered
}

// AwaitPackets returns when the packets that were at a hook have left it: a grace period of
// RCU, mostly 5 to 18 ms. On a kernel without membarrier(2) it does not wait.
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
}
