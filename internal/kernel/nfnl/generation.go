package nfnl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrUnanswered means that the kernel neither refused nor confirmed a request. It may have been
// applied or not: read the state before the next change.
var ErrUnanswered = errors.New("the kernel did not answer")

// MaxNested is the size in bytes at which a list should continue in another attribute or message:
// an attribute's length has 16 bits. It leaves room for one more element.
const MaxNested = 60 << 10

// Generation returns the number of transactions, of any program, that changed nftables in the
// socket's namespace (nft_net.base_seq). If it is the same as before, no rule has changed;
// updates of sets by packets do not count.
func (s *Socket) Generation() (uint32, error) {
	data, err := s.Get(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	if err != nil {
		return 0, err
	}
	id := Attribute(data, unix.NFTA_GEN_ID)
	if len(id) != 4 {
		return 0, ErrUnanswered
	}
	return Uint32(id), nil
}

// AwaitPackets returns when the packets that were at a hook have left it: a grace period of
// RCU, mostly 5 to 18 ms. Packets that wait in a queue (NFQUEUE) are not at a hook. On a kernel
// without membarrier(2), or with nohz_full CPUs, it does not wait.
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
}
