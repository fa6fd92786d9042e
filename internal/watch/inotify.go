package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// folderMask selects the events of a folder. IN_MODIFY is not among them: a file is ignored while it is
	// written, and afterwards only reported as not read.
	folderMask = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_CLOSE_WRITE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

	// goneMask selects the events after which the watch may no longer be of the folder at the path.
	goneMask = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// An event is something that happened to a name. See inotify(7).
type event struct {
	mask uint32
	name string // empty when it happened to the folder itself
}

// has reports whether the event has any bit of mask.
func (e event) has(mask uint32) bool { return e.mask&mask != 0 }

// openInotify returns a file that the events of a folder are read from. fsnotify and k8s.io/utils/inotify do not
// serve: see docs/decisions/0047.
func openInotify(dir string) (*os.File, error) {
	// The descriptor does not block, so Go's poller waits for it, with a deadline.
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, folderMask); err != nil {
		file.Close()
		return nil, &fs.PathError{Op: "inotify", Path: dir, Err: err}
	}
	return file, nil
}

// readEvents waits for events, but no longer than most; then there are none.
func readEvents(file *os.File, buf []byte, most time.Duration) ([]event, error) {
	if err := file.SetReadDeadline(time.Now().Add(most)); err != nil {
		return nil, err
	}
	n, err := file.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return parseEvents(buf[:n]), err
}

// parseEvents reads a sequence of struct inotify_event.
func parseEvents(b []byte) []event {
	var events []event
	for len(b) >= unix.SizeofInotifyEvent {
		mask, n := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if len(b) < n {
			break
		}
		events = append(events, event{mask, string(bytes.TrimRight(b[:n], "\x00"))})
		b = b[n:]
	}
	return events
}
