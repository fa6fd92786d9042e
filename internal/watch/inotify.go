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

// What is asked of the folder and of the folder above it. There is no
// IN_MODIFY: a file that is being written is ignored until
// it is closed, and then only reported as not read.
const (
	folderMask = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_CLOSE_WRITE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	aboveMask = unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

	goneMask = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// An inotify reports the events of a folder, and when another folder takes its
// place. See inotify(7).
type inotify struct {
	dir    string // absolute
	file   *os.File
	folder int    // watch descriptor of dir, -1 when it does not exist
	above  int    // of the nearest folder above it that exists
	next   string // the name in above on the way to dir
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

// newInotify ends when ctx does.
func newInotify(ctx context.Context, dir string) (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	// As it does not block, Go's poller waits for it, and Close ends the wait.
	w := &inotify{dir: dir, file: os.NewFile(uintptr(fd), "inotify"), folder: -1, above: -1}
	context.AfterFunc(ctx, func() { w.file.Close() })
	return w, nil
}

// arm watches the folder that is at dir now. exists is false if there is none; then an event of
// the folder above says when there is one.
func (w *inotify) arm() (exists bool, err error) {
	for {
		// The folder above comes first: what happens after is not missed.
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
		// It, or a folder on the way to it, has come meanwhile.
	}
}

// armAbove watches the nearest folder above dir that exists, so that it is known when dir appears.
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

// aboveDir is the nearest folder above dir that exists. The root always does.
func (w *inotify) aboveDir() string {
	dir := filepath.Dir(w.dir)
	for !exist(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// exist reports whether there is anything at path; a link to nothing is nothing.
func exist(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// add goes through the poller's lock, so that the descriptor cannot be closed,
// and its number be another file's, meanwhile.
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
		// It is gone already if its folder is.
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(*wd)) })
	}
	*wd = -1
}

// wait returns what has happened since it was last called, and waits if nothing
// has. It fails once the watch has ended.
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
