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

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/notify"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
)

// Files is a Source that reads a folder of YAML and JSON, and reads it again
// when something is renamed into it.
//
// Only rename, and links, put a whole file in place at one instant. A file that
// is written in place could be read half, and half a file may well be valid
// YAML: with half the endpoints. So it is not read, and a Problem says so.
//
// An object is removed by removing it from its file, or the file from the folder.
// Nothing else removes it: of a file with a syntax error the version before stays
// in use, and if the whole folder goes away, all files do until it is back.
//
// Hidden files, and names that end in ~, .tmp or .swp, are ignored. So are folders
// in the folder. A Kubernetes ConfigMap may be mounted there.
type Files struct {
	dir      string
	log      *slog.Logger
	level    slog.Level // of a line per file
	snapshot atomic.Pointer[cluster.Snapshot]
	changed  chan struct{}

	// The rest belongs to the goroutine that run is in.
	inotify *inotify // events of the folder, and of the nearest folder above it that exists
	builder *cluster.Builder
	files   map[string]*file
	// origins are the files that have an object, sorted by name. The first one's
	// counts.
	origins map[cluster.Key][]origin
}

// A file was read or seen.
type file struct {
	name string
	read fs.FileInfo // what was read; nil before
	docs []document
	// fileProblem is what is wrong with the file itself, if anything.
	fileProblem []cluster.Problem
}

// An origin is an object and the file that it is in.
type origin struct {
	file string
	obj  runtime.Object
}

// OpenFiles reads the folder dir and watches it until ctx ends. What is wrong
// with the files is no error but a Problem of the snapshot. Known are versions to
// use of objects that have a mistake; nil: none.
func OpenFiles(ctx context.Context, dir string, known *cluster.Configuration, log *slog.Logger) (*Files, error) {
	f, err := loadFiles(ctx, dir, known, log)
	if err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

// loadFiles is OpenFiles without a goroutine that looks at what happens.
func loadFiles(ctx context.Context, dir string, known *cluster.Configuration, log *slog.Logger) (*Files, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &Files{
		dir:     abs,
		log:     log,
		level:   slog.LevelDebug, // There may be thousands of files.
		changed: make(chan struct{}, 1),
		builder: cluster.NewBuilder(),
		files:   map[string]*file{},
		origins: map[cluster.Key][]origin{},
	}
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

// Snapshot is the folder as it was read last.
func (f *Files) Snapshot() *cluster.Snapshot { return f.snapshot.Load() }

// Changed gets a value when there is another snapshot.
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

// publish makes the snapshot of what was read since the last time, notifies the reader and logs the new
// Problems.
func (f *Files) publish() {
	before, s := f.snapshot.Load(), f.builder.Snapshot()
	if s == before {
		return
	}
	f.snapshot.Store(s)
	notify.Changed(f.changed)
	for _, p := range s.Problems {
		if !slices.Contains(before.Problems, p) {
			f.log.Warn("problem in the files", "err", p.String())
		}
	}
}

// configMapData is the link that a kubelet swaps to change all files of a
// ConfigMap, which are links through it, at one instant.
const configMapData = "..data"

// apply reads what events say has changed. A name may be in several events at once: the last rename or
// creation of it decides whether a whole file was put there.
func (f *Files) apply(events []event) {
	var rearm, rescan bool
	placed := map[string]bool{}
	for _, e := range events {
		switch {
		case e.has(unix.IN_Q_OVERFLOW):
			rescan = true // The kernel does not say which events it dropped.
		case e.wd == f.inotify.above:
			rearm = rearm || e.name == f.inotify.next || e.has(goneMask)
		case e.wd != f.inotify.folder:
			// Of a watch that was removed since.
		case e.has(goneMask):
			rearm = true
		case e.name == configMapData:
			rescan = true
		case e.has(unix.IN_CLOSE_WRITE) && placed[e.name]:
			// A writer that renamed before it closed. All that it wrote is read now.
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

// rearm watches the folder that is at the path now, and reports whether there is one. The folder may be
// a link that was swapped.
func (f *Files) rearm() bool {
	exists, err := f.inotify.arm()
	if err == nil && !exists {
		err = errors.New("is gone; put it back. All objects stay as they were until then")
	}
	f.report(err)
	return exists
}

// report makes a Problem of what is wrong with the folder; nil ends it. No object goes meanwhile.
func (f *Files) report(err error) {
	if err == nil {
		f.builder.Report("folder", nil)
		return
	}
	f.builder.Report("folder", []cluster.Problem{{Object: "Folder " + f.dir, Message: err.Error()}})
}

// rescan compares the whole folder with the files that are known: at the start, and when events
// were lost or the folder was replaced.
func (f *Files) rescan() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.Name()] = true
		f.compare(e.Name())
	}
	for name := range f.files {
		if !seen[name] {
			f.look(name, false)
		}
	}
	return nil
}

// compare reads a file if it is another one than that which is known. If it is
// the same with other content, it was written in place.
func (f *Files) compare(name string) {
	st, err := os.Stat(filepath.Join(f.dir, name))
	known := f.files[name]
	other := known == nil || err == nil && !os.SameFile(known.read, st)
	f.look(name, other)
}

// ignored reports whether a file is not for us.
func ignored(name string) bool {
	if strings.HasPrefix(name, ".") {
		return true
	}
	switch filepath.Ext(name) { // .yaml~, .tmp, .swp and the rest are not here
	case ".yaml", ".yml", ".json":
		return false
	}
	return true
}

// look reads or removes the file of a name, or reports why it does neither. Placed: a rename has put
// the file there, so that it is whole.
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
		// Opened for writing and closed again, or back where it was.
	default:
		f.setProblem(f.touch(name), 0, "written in place; write it elsewhere on the same filesystem and rename it into the folder")
	}
}

// backupSuffix is what vi, emacs and others add to the name of the file that
// they are about to replace by writing in place.
const backupSuffix = "~"

// linked reports whether a name that was created is a link, symbolic or hard, to a
// file that was whole before it had this name.
func linked(path string, known *file, st fs.FileInfo) bool {
	if known != nil && os.SameFile(known.read, st) {
		return false
	}
	l, err := os.Lstat(path)
	return err == nil && (l.Mode()&fs.ModeSymlink != 0 || st.Sys().(*syscall.Stat_t).Nlink > 1)
}

// touch is the file of a name. A new one has no objects: it is there to carry a Problem.
func (f *Files) touch(name string) *file {
	if f.files[name] == nil {
		f.files[name] = &file{name: name}
	}
	return f.files[name]
}

// read replaces the objects of a file by what is in it now. A file that has become unreadable as a whole
// keeps the objects that it had.
func (f *Files) read(name string) {
	fl := f.touch(name)
	b, st, err := readFile(filepath.Join(f.dir, name))
	if err != nil {
		f.setProblem(fl, 0, err.Error())
		return
	}
	fl.read = st
	docs, err := decodeFile(name, b, fl.docs)
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
	f.log.Log(context.Background(), f.level, "file read", "file", name, "objects", len(goodObjects(docs)))
	f.update(fl, old)
}

// remove removes a file that is gone, with its objects and Problems. An object that another file has,
// too, is taken from that one.
func (f *Files) remove(name string) {
	fl := f.files[name]
	if fl == nil {
		return
	}
	old := fl.docs
	fl.docs, fl.fileProblem = nil, nil
	f.log.Log(context.Background(), f.level, "file removed", "file", name, "objects", len(goodObjects(old)))
	f.update(fl, old)
	delete(f.files, name)
}

// setProblem sets what is wrong with the file itself. Its objects stay.
func (f *Files) setProblem(fl *file, line int, message string) {
	at := fl.name
	if line != 0 {
		at = fmt.Sprintf("%s:%d", fl.name, line)
	}
	fl.fileProblem = []cluster.Problem{{Object: "File " + fl.name, File: at, Message: message}}
	f.builder.Report("file "+fl.name, fl.problems())
}

// update makes the objects of fl, in the place of those of old, known.
func (f *Files) update(fl *file, old []document) {
	before := goodObjects(old)
	for key, obj := range goodObjects(fl.docs) {
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

// setOrigin sets the object of a file; nil: the file no longer has it. Of several
// files the first by name counts, so that the order in which they came does not.
func (f *Files) setOrigin(key cluster.Key, from origin) {
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

// problems are those of the file and of the objects in it.
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
			p = append(p, slices.Clone(it.problems).Of(it.key.String(), fl.name)...)
			if seen[it.key] {
				p = append(p, cluster.Problem{Object: it.key.String(), File: at, Message: "is in this file before, and that counts; remove one of them"})
			}
			seen[it.key] = true
		}
	}
	return p
}

// unchanged reports whether the file that was read is at st with the same size and time of modification.
func (fl *file) unchanged(st fs.FileInfo) bool {
	return os.SameFile(fl.read, st) && fl.read.Size() == st.Size() && fl.read.ModTime().Equal(st.ModTime())
}

// isAt reports whether the file that was read has the name path now.
func (fl *file) isAt(path string) bool {
	st, err := os.Stat(path)
	return err == nil && os.SameFile(fl.read, st)
}

// maxFile bounds the bytes of one file: more than all objects of a large cluster, and less than would
// exhaust the memory of a node.
const maxFile = 256 << 20

// readFile also says which file it was. O_NONBLOCK: a pipe with the name of a
// file must not hold everything up.
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
