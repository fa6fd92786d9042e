package l2

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// repeatTime is when a host repeats a request: after a second, three times in all (RFC 4861 §10,
// RETRANS_TIMER; Linux's retrans_time_ms for both protocols). An older request was answered,
// repeated or given up, and must not be answered: this process may have been suspended, and another
// node may have the address since. A host that still waits has a newer request in the queue.
//
// The kernel's time does not help if the whole machine was suspended: it receives then what the
// hypervisor has kept.
const repeatTime = time.Second

// A socket's option SO_TIMESTAMPNS has the kernel pass the time at which it received each frame. The
// kernel then reads its clock for each packet of the node, as it does for most time daemons. It begins a
// moment later (netstamp_needed_key, by a work queue); until then it passes the time at which a frame is
// read, so that frames count as new.

// timespecLength is the length of a timestamp on 64-bit machines, controlLength that of the
// control message that has it.
const timespecLength = 16

var controlLength = unix.CmsgSpace(timespecLength)

// readFrame waits for a frame. It returns the lengths of the frame and of its control messages.
func (p *packetSocket) readFrame(frame, control []byte) (n, controls int, err error) {
	failed := p.raw.Read(func(fd uintptr) bool {
		n, controls, _, _, err = unix.Recvmsg(int(fd), frame, control, 0)
		return !errors.Is(err, unix.EAGAIN)
	})
	return n, controls, errors.Join(err, failed)
}

// age returns how long ago the kernel received a frame with these control messages. The kernel's
// time is the wall clock's. When the clock is set forward, only the frames in the queue look
// old. A frame of the future counts as new, and so does one without a timestamp.
func age(control []byte, now time.Time) time.Duration {
	for len(control) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS && len(data) == timespecLength {
			return max(0, now.Sub(time.Unix(number64(data), number64(data[8:]))))
		}
		control = rest
	}
	return 0
}

func number64(b []byte) int64 { return int64(binary.NativeEndian.Uint64(b)) }
