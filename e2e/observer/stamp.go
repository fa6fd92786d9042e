package observer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A stamper records when the kernel put each message into a netlink socket. Unlike packets,
// netlink messages carry no time, and on a busy machine a reader may wake up many
// milliseconds late. The kernel sends the notification of a rule within the system call
// that commits it, so the stamps order a commit before its author's next action.
//
// It is a socket filter that accepts everything and pushes the time onto a queue.
type stamper struct{ queue int }

// maxStamps bounds the messages that wait to be read.
const maxStamps = 1 << 16

// newStamper attaches a stamper to a socket.
func newStamper(socket int) (*stamper, error) {
	queue, err := bpf(unix.BPF_MAP_CREATE,
		struct{ kind, keySize, valueSize, entries uint32 }{unix.BPF_MAP_TYPE_QUEUE, 0, 8, maxStamps})
	if err != nil {
		return nil, fmt.Errorf("queue for times: %w", err)
	}
	filter, err := loadStampFilter(queue)
	if err == nil {
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, filter)
		err = errors.Join(err, unix.Close(filter)) // the socket keeps a reference
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("filter for times: %w", err), unix.Close(queue))
	}
	return &stamper{queue}, nil
}

// loadStampFilter assembles: push(queue, ktime_get_ns()); accept.
func loadStampFilter(queue int) (int, error) {
	const (
		callKtime = 5  // bpf_ktime_get_ns
		callPush  = 87 // bpf_map_push_elem
		all       = 0x7fffffff
	)
	insn := func(code, dst, src byte, offset int16, imm int32) uint64 {
		return uint64(code) | uint64(dst|src<<4)<<8 | uint64(uint16(offset))<<16 | uint64(uint32(imm))<<32
	}
	program := []uint64{
		insn(unix.BPF_JMP|unix.BPF_CALL, 0, 0, 0, callKtime),
		insn(unix.BPF_STX|unix.BPF_MEM|unix.BPF_DW, 10, 0, -8, 0),                              // stack = r0
		insn(unix.BPF_LD|unix.BPF_IMM|unix.BPF_DW, 1, unix.BPF_PSEUDO_MAP_FD, 0, int32(queue)), // r1 = queue,
		0, // in two instructions
		insn(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_X, 2, 10, 0, 0), // r2 = address of stack
		insn(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, 2, 0, 0, -8),
		insn(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_K, 3, 0, 0, 0), // r3 = flags
		insn(unix.BPF_JMP|unix.BPF_CALL, 0, 0, 0, callPush),
		insn(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_K, 0, 0, 0, all),
		insn(unix.BPF_JMP|unix.BPF_EXIT, 0, 0, 0, 0),
	}
	licence := []byte("Apache-2.0\x00")
	return bpf(unix.BPF_PROG_LOAD, struct {
		kind, count      uint32
		program, licence unsafe.Pointer
	}{unix.BPF_PROG_TYPE_SOCKET_FILTER, uint32(len(program)), unsafe.Pointer(&program[0]), unsafe.Pointer(&licence[0])})
}

// next returns the time of the next message.
func (s *stamper) next() (time.Time, error) {
	var stamp uint64
	_, err := bpf(unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM, struct {
		queue      uint64
		key, value unsafe.Pointer
		flags      uint64
	}{uint64(s.queue), nil, unsafe.Pointer(&stamp), 0})
	if err != nil {
		return time.Time{}, fmt.Errorf("time of a message: %w", err)
	}
	age, now, err := sinceBoot(clockTries)
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(time.Duration(stamp) - age), nil
}

// bpfTries bounds the repetitions of a system call that signals interrupt.
const bpfTries = 100

// clockTries is enough for one try that the scheduler does not interrupt.
const clockTries = 5

// sinceBoot reads the monotonic clock and the time of day together. A thread that is
// descheduled between the two readings would shift all times, so the closest of several
// pairs counts.
func sinceBoot(tries int) (monotonic time.Duration, now time.Time, err error) {
	tightest := time.Duration(math.MaxInt64)
	for range tries {
		var before, after unix.Timespec
		e := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
		at := time.Now()
		if e := errors.Join(e, unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)); e != nil {
			return 0, now, e
		}
		if width := time.Duration(after.Nano() - before.Nano()); width < tightest {
			tightest, monotonic, now = width, time.Duration(before.Nano())+width/2, at
		}
	}
	return monotonic, now, nil
}

func (s *stamper) close() error { return unix.Close(s.queue) }

// bpf calls the bpf system call. T is a struct with the leading attributes of the command.
func bpf[T any](command int, attributes T) (int, error) {
	for tries := 0; ; tries++ {
		result, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(&attributes)),
			unsafe.Sizeof(attributes))
		// The verifier stops when a signal is pending, and Go's scheduler sends signals to
		// preempt goroutines.
		if errno == unix.EAGAIN && tries < bpfTries {
			continue
		}
		if errno != 0 {
			return 0, os.NewSyscallError("bpf", errno)
		}
		return int(result), nil
	}
}

// packetTime returns when the kernel received a packet, for sockets with SO_TIMESTAMPNS.
func packetTime(control []byte) (time.Time, error) {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range all {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))),
				nil
		}
	}
	return time.Time{}, errors.New("a packet without a timestamp")
}
