package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The events of the folder and of the folder above it that are watched. IN_MODIFY is not among
// them: a file is ignored while it is written, and afterwards only reported as not read.
const (
	folderMask = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_CLOSE_WRITE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	aboveMask = unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

	goneMask = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// An inotify reports the events of a folder, and its replacement by another folder. See inotify(7).
type inotify struct {
	dir    string // absolute
	file   *os.File
	folder int    // watch descriptor of dir, -1 when it does not exist
	above  int    // of the nearest folder above it that exists
	next   string // the next name on the path from above to dir
	buf    [64 << 10]byte
}

// An event is something that happened to a name.
type event struct {
	wd   int
	mask uint32
	name string // empty when it happened to the folder itself
}

// has reports whether the event has any bit of mask.
func (e event) has(mask uint32) bool { return e.mask&mask != 0 }

// newInotify returns an inotify that ends with ctx.
func newInotify(ctx context.Context, dir string) (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	// The descriptor does not block, so Go's poller waits for it, and Close ends the wait.
	w := &inotify{dir: dir, file: os.NewFile(uintptr(fd), "inotify"), folder: -1, above: -1}
	context.AfterFunc(ctx, func() { w.file.Close() })
	return w, nil
}

// arm watches the folder that is at dir now. exists is false if there is none; then an event of the
// folder above shows its creation.
func (w *inotify) arm() (exists bool, err error) {
	for {
		// The folder above comes first, so that later events are not missed.
		if err := w.armAbove(); err != nil {
			return false, err
		}
		w.remove(&w.folder)
		w.folder, err = w.add(w.dir, folderMask)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		case !exist(filepath.Join(w.aboveDir(), w.next)):
			return false, nil
		}
		// The folder, or one on the path to it, was created meanwhile.
	}
}

// armAbove watches the nearest existing folder above dir, to detect when dir appears.
func (w *inotify) armAbove() error {
	for {
		w.remove(&w.above)
		dir := w.aboveDir()
		rel, err := filepath.Rel(dir, w.dir)
		if err != nil {
			return err
		}
		w.next, _, _ = strings.Cut(rel, string(filepath.Separator))
		w.above, err = w.add(dir, aboveMask)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// aboveDir returns the nearest existing folder above dir. The root always exists.
func (w *inotify) aboveDir() string {
	dir := filepath.Dir(w.dir)
	for !exist(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// exist reports whether path exists; a link to a missing file does not.
func exist(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// add holds the poller's lock, so that the descriptor cannot be closed meanwhile, and its number
// reused for another file.
func (w *inotify) add(path string, mask uint32) (wd int, err error) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := conn.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, mask) }); cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, &fs.PathError{Op: "inotify", Path: path, Err: err}
	}
	return wd, nil
}

// remove ends a watch, if wd is one, and sets wd to -1.
func (w *inotify) remove(wd *int) {
	if *wd < 0 {
		return
	}
	if conn, err := w.file.SyscallConn(); err == nil {
		// The watch has already ended if its folder was deleted.
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(*wd)) })
	}
	*wd = -1
}

// wait returns the events since the last call, and waits if there are none. It fails once the watch
// has ended.
func (w *inotify) wait() ([]event, error) {
	n, err := w.file.Read(w.buf[:])
	if err != nil {
		return nil, err
	}
	return parseEvents(w.buf[:n]), nil
}

// parseEvents reads a sequence of struct inotify_event.
func parseEvents(b []byte) []event {
	var events []event
	for len(b) >= unix.SizeofInotifyEvent {
		n := int(binary.NativeEndian.Uint32(b[12:])) // with the padding
		if len(b) < unix.SizeofInotifyEvent+n {
			break
		}
		name := b[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+n]
		events = append(events, event{
			wd:   int(int32(binary.NativeEndian.Uint32(b))),
			mask: binary.NativeEndian.Uint32(b[4:]),
			name: string(bytes.TrimRight(name, "\x00")),
		})
		b = b[unix.SizeofInotifyEvent+n:]
	}
	return events
}
