package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/notify"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
)

// Files is a Source that reads a folder of YAML and JSON, and reads it again when a file is renamed
// into it.
//
// Only renames and links put a whole file in place at one instant. A file that is written in place
// could be read in part, and a part may well be valid YAML: with half of the endpoints. So such a
// file is not read, and a Problem says so.
//
// An object is removed by removing it from its file, or the file from the folder, and in no other
// way: if a file has a syntax error, its previous version stays in use, and if the whole folder
// disappears, all files do until it is back.
//
// Hidden files, and names that end in ~, .tmp or .swp, are ignored. So are subfolders. The folder
// may be a mounted Kubernetes ConfigMap.
type Files struct {
	dir      string
	log      *slog.Logger
	level    slog.Level // of a line per file
	problems *problemLog
	snapshot atomic.Pointer[cluster.Snapshot]
	changed  chan struct{}

	// Only the goroutine of run uses the following fields.
	inotify *inotify // events of the folder, and of the nearest folder above it that exists
	builder *cluster.Builder
	files   map[string]*file
	// origins maps an object to its files, sorted by name. The first file counts.
	origins map[cluster.Key][]origin
	// saved are valid versions from an earlier process, for objects that have had none in this one.
	saved map[cluster.Key]runtime.Object
	// ahead has what rescan has read of files whose turn has not come yet.
	ahead map[string]content
}

// A file was read or seen.
type file struct {
	name string
	read fs.FileInfo // the content that was read; nil before
	docs []document
	// fileProblem has a Problem of the file itself, if there is one.
	fileProblem []cluster.Problem
}

// An origin is an object and the file that it is in.
type origin struct {
	file string
	obj  runtime.Object
}

// OpenFiles reads the folder dir and watches it until ctx ends. Mistakes in files are no error, but
// Problems of the snapshot. known has versions for objects with a mistake; nil: none.
func OpenFiles(ctx context.Context, dir string, known *cluster.Configuration, log *slog.Logger) (*Files, error) {
	f, err := loadFiles(ctx, dir, known, cluster.Scope{}, log)
	if err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

// ReadFiles is OpenFiles for a plan: the snapshot never changes, and says what is not served.
func ReadFiles(ctx context.Context, dir string, known *cluster.Configuration, log *slog.Logger) (*Files, error) {
	return loadFiles(ctx, dir, known, cluster.Scope{Unserved: true}, log)
}

// loadFiles is OpenFiles without the goroutine that handles events.
func loadFiles(ctx context.Context, dir string, known *cluster.Configuration, scope cluster.Scope, log *slog.Logger) (*Files, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &Files{
		dir:      abs,
		log:      log,
		level:    slog.LevelDebug, // there may be thousands of files
		problems: newProblemLog(log, "problem in the files"),
		changed:  make(chan struct{}, 1),
		builder:  cluster.NewBuilder(),
		files:    map[string]*file{},
		saved:    known.Objects(),
		origins:  map[cluster.Key][]origin{},
	}
	f.builder.Limit(scope)
	f.builder.Know(known)
	f.snapshot.Store(f.builder.Snapshot())
	if f.inotify, err = newInotify(ctx, abs); err != nil {
		return nil, err
	}
	exists, err := f.inotify.arm()
	switch {
	case err == nil && !exists:
		err = &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	case err == nil:
		err = f.rescan()
	}
	if err != nil {
		f.inotify.file.Close()
		return nil, err
	}
	f.publish()
	log.Info("folder read", "dir", dir, "files", len(f.files), "objects", len(f.origins), "problems", len(f.Snapshot().Problems))
	f.level = slog.LevelInfo
	return f, nil
}

// Snapshot returns the folder as it was last read.
func (f *Files) Snapshot() *cluster.Snapshot { return f.snapshot.Load() }

// Changed receives a value when there is another snapshot.
func (f *Files) Changed() <-chan struct{} { return f.changed }

// run applies events until the context of OpenFiles ends, which closes inotify.
func (f *Files) run() {
	for {
		events, err := f.inotify.wait()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				f.log.Error("BUG: folder is no longer watched", "err", err)
			}
			return
		}
		f.apply(events)
		f.publish()
	}
}

// publish makes a snapshot of what was read since the last one, notifies the reader and logs new
// Problems.
func (f *Files) publish() {
	before, s := f.snapshot.Load(), f.builder.Snapshot()
	if s == before {
		return
	}
	f.snapshot.Store(s)
	notify.Changed(f.changed)
	f.problems.write(f.builder.NewProblems(), time.Now())
}

// configMapData is the link that a kubelet swaps to change all files of a ConfigMap, which are
// links through it, at one instant.
const configMapData = "..data"

// apply reads the files that events name. If a name is in several events, the last rename or
// creation decides whether a whole file was put in place.
func (f *Files) apply(events []event) {
	var rearm, rescan bool
	placed := map[string]bool{}
	for _, e := range events {
		switch {
		case e.has(unix.IN_Q_OVERFLOW):
			rescan = true // the kernel does not say which events it dropped
		case e.wd == f.inotify.above:
			rearm = rearm || e.name == f.inotify.next || e.has(goneMask)
		case e.wd != f.inotify.folder:
			// The event is from a watch that was removed since.
		case e.has(goneMask):
			rearm = true
		case e.name == configMapData:
			rescan = true
		case e.has(unix.IN_CLOSE_WRITE) && placed[e.name]:
			// A writer renamed the file before closing it. The complete content is read now.
		default:
			placed[e.name] = e.has(unix.IN_MOVED_TO)
		}
	}
	if rearm {
		rescan = f.rearm()
	}
	if rescan {
		f.report(f.rescan())
	}
	for name, moved := range placed {
		f.look(name, moved)
	}
}

// rearm watches the folder that is at the path now, and reports whether there is one. The path may
// be a link that was swapped.
func (f *Files) rearm() bool {
	exists, err := f.inotify.arm()
	if err == nil && !exists {
		err = errors.New("is gone; put it back. All objects stay as they were until then")
	}
	f.report(err)
	return exists
}

// report makes a Problem of an error of the folder; nil ends it. All objects stay meanwhile.
func (f *Files) report(err error) {
	if err == nil {
		f.builder.Report("folder", nil)
		return
	}
	f.builder.Report("folder", []cluster.Problem{{Object: "Folder " + f.dir, Message: err.Error()}})
}

// ignored reports whether a file is not read.
func ignored(name string) bool {
	if strings.HasPrefix(name, ".") {
		return true
	}
	switch filepath.Ext(name) { // .yaml~, .tmp, .swp and others are not in this list
	case ".yaml", ".yml", ".json":
		return false
	}
	return true
}

// look reads or removes the file with a name, or reports why it does neither. placed: a rename has
// put the file in place, so it is whole.
func (f *Files) look(name string, placed bool) {
	if base, ok := strings.CutSuffix(name, backupSuffix); ok && f.files[base] != nil {
		name, placed = base, false
	}
	if ignored(name) {
		return
	}
	path := filepath.Join(f.dir, name)
	known := f.files[name]
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if known != nil && known.isAt(path+backupSuffix) {
			f.setProblem(known, 0, "was renamed to "+name+backupSuffix+", as editors do before they write in place"+cluster.StaysInUse)
			return
		}
		f.remove(name)
	case err != nil:
		f.setProblem(f.touch(name), 0, err.Error())
	case !st.Mode().IsRegular():
		f.remove(name)
	case placed || linked(path, known, st):
		f.read(name)
	case known != nil && known.unchanged(st):
		// The file was opened for writing and closed again, or renamed back.
	default:
		f.setProblem(f.touch(name), 0, "written in place; write it elsewhere on the same filesystem and rename it into the folder")
	}
}

// backupSuffix is what vi, emacs and others append to the name of a file before they write it in
// place.
const backupSuffix = "~"

// linked reports whether a created name is a link, symbolic or hard, to a file that was whole
// before it had this name.
func linked(path string, known *file, st fs.FileInfo) bool {
	if known != nil && os.SameFile(known.read, st) {
		return false
	}
	l, err := os.Lstat(path)
	return err == nil && (l.Mode()&fs.ModeSymlink != 0 || st.Sys().(*syscall.Stat_t).Nlink > 1)
}

// touch returns the file with a name. A new one has no objects; it only carries a Problem.
func (f *Files) touch(name string) *file {
	if f.files[name] == nil {
		f.files[name] = &file{name: name}
	}
	return f.files[name]
}

// read replaces the objects of a file by its present ones. A file that has become unreadable as a
// whole keeps its objects.
func (f *Files) read(name string) {
	fl := f.touch(name)
	c, ok := f.ahead[name]
	delete(f.ahead, name)
	if !ok {
		c = f.load(name)
	}
	if c.read == nil {
		f.setProblem(fl, 0, c.err.Error())
		return
	}
	fl.read = c.read
	docs, err := c.docs, c.err
	var syntax *syntaxError
	switch {
	case errors.As(err, &syntax) && len(fl.docs) != 0:
		f.setProblem(fl, syntax.line, syntax.message+cluster.StaysInUse)
		return
	case errors.As(err, &syntax):
		f.setProblem(fl, syntax.line, syntax.message)
		return
	}
	if d, ok := unknown(docs); ok && len(fl.docs) != 0 {
		f.setProblem(fl, d.line, d.items[0].problems[0].Message+cluster.StaysInUse)
		return
	}
	old := fl.docs
	fl.docs, fl.fileProblem = docs, nil
	objects := goodObjects(docs)
	f.log.Log(context.Background(), f.level, "file read", "file", name, "objects", len(objects))
	f.update(fl, goodObjects(old), objects)
}

// remove removes a deleted file, with its objects and Problems. If another file also has an object,
// that one is used.
func (f *Files) remove(name string) {
	fl := f.files[name]
	if fl == nil {
		return
	}
	old := goodObjects(fl.docs)
	fl.docs, fl.fileProblem = nil, nil
	f.log.Log(context.Background(), f.level, "file removed", "file", name, "objects", len(old))
	f.update(fl, old, nil)
	delete(f.files, name)
}

// setProblem sets a Problem of the file itself. Its objects stay.
func (f *Files) setProblem(fl *file, line int, message string) {
	at := fl.name
	if line != 0 {
		at = fmt.Sprintf("%s:%d", fl.name, line)
	}
	fl.fileProblem = []cluster.Problem{{Object: "File " + fl.name, File: at, Message: message}}
	f.builder.Report("file "+fl.name, fl.problems())
}

// update replaces the objects before, which a file had, by the objects now, which it has.
func (f *Files) update(fl *file, before, now map[cluster.Key]runtime.Object) {
	for key, obj := range now {
		if before[key] != obj {
			f.setOrigin(key, origin{fl.name, obj})
		}
		delete(before, key)
	}
	for key := range before {
		f.setOrigin(key, origin{fl.name, nil})
	}
	f.builder.Report("file "+fl.name, fl.problems())
}

// setOrigin sets the object of a file; nil: the file no longer has it. Of several files the first
// by name counts, so that the order of events does not matter.
func (f *Files) setOrigin(key cluster.Key, from origin) {
	delete(f.saved, key)
	list := slices.DeleteFunc(slices.Clone(f.origins[key]), func(o origin) bool { return o.file == from.file })
	if from.obj != nil {
		list = append(list, from)
	}
	slices.SortFunc(list, func(a, b origin) int { return cmp.Compare(a.file, b.file) })
	var p []cluster.Problem
	switch len(list) {
	case 0:
		delete(f.origins, key)
		f.builder.Delete(key)
	default:
		f.origins[key] = list
		f.builder.Set(list[0].obj, list[0].file)
		for _, o := range list[1:] {
			p = append(p, cluster.Problem{Object: key.String(), File: o.file, Message: "is in " + list[0].file + " too, which counts; remove one of them"})
		}
	}
	f.builder.Report("copies of "+key.String(), p)
}

// problems returns the Problems of the file and of its objects.
func (fl *file) problems() []cluster.Problem {
	p := slices.Clone(fl.fileProblem)
	seen := map[cluster.Key]bool{}
	for _, d := range fl.docs {
		at := fmt.Sprintf("%s:%d", fl.name, d.line)
		for _, it := range d.items {
			if it.key == (cluster.Key{}) {
				p = append(p, slices.Clone(it.problems).Of("File "+fl.name, at)...)
				continue
			}
			p = append(p, it.report().Of(it.key.String(), fl.name)...)
			if seen[it.key] {
				p = append(p, cluster.Problem{Object: it.key.String(), File: at, Message: "is in this file before, and that counts; remove one of them"})
			}
			seen[it.key] = true
		}
	}
	return p
}

// unchanged reports whether st is the file that was read, with the same size and modification time.
func (fl *file) unchanged(st fs.FileInfo) bool {
	return os.SameFile(fl.read, st) && fl.read.Size() == st.Size() && fl.read.ModTime().Equal(st.ModTime())
}

// isAt reports whether path still names the file that was read.
func (fl *file) isAt(path string) bool {
	st, err := os.Stat(path)
	return err == nil && os.SameFile(fl.read, st)
}

// maxFile limits the size of a file in bytes: more than all objects of a large cluster, and less
// than would exhaust the memory of a node.
const maxFile = 256 << 20

// readFile also returns the identity of the file. O_NONBLOCK: a pipe with the name of a file must
// not block.
func readFile(path string) ([]byte, fs.FileInfo, error) {
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, nil, fmt.Errorf("is no file, or one of more than %d MiB", maxFile>>20)
	}
	b, err := io.ReadAll(r)
	return b, st, err
}
