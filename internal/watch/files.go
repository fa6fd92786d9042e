package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/cluster"
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
	events  *os.File    // inotify's, of folder
	folder  fs.FileInfo // what is watched; nil: the folder that comes back must be watched and compared
	buf     [64 << 10]byte
	builder *cluster.Builder
	files   map[string]*file
	// origins maps an object to its files, sorted by name. The first file counts.
	origins map[cluster.Key][]origin
	// saved are valid versions from an earlier process, for objects that have had none in this one.
	saved map[cluster.Key]runtime.Object
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
	f, err := ReadFiles(dir, known, cluster.Scope{}, log)
	if err != nil {
		return nil, err
	}
	go f.run(ctx)
	return f, nil
}

// ReadFiles is OpenFiles without the goroutine that handles events, as for a plan: the snapshot never changes.
func ReadFiles(dir string, known *cluster.Configuration, scope cluster.Scope, log *slog.Logger) (*Files, error) {
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
	if err := f.update(nil); err != nil {
		return nil, err
	}
	f.publish()
	log.Info("folder read", "dir", dir, "files", len(f.files), "objects", len(f.origins),
		"problems", len(f.Snapshot().Problems))
	f.level = slog.LevelInfo
	return f, nil
}

// Snapshot returns the folder as it was last read.
func (f *Files) Snapshot() *cluster.Snapshot { return f.snapshot.Load() }

// Changed receives a value when there is another snapshot.
func (f *Files) Changed() <-chan struct{} { return f.changed }

// checkPath is how often the path is compared with the folder that is watched. Only a folder that was replaced
// waits for it: inotify reports nothing of a link on the path that was swapped.
const checkPath = time.Second

// run applies events until ctx ends.
func (f *Files) run(ctx context.Context) {
	defer func() { f.events.Close() }() // of the last folder
	for {
		events, err := readEvents(f.events, f.buf[:], checkPath)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.log.Error("BUG: folder is no longer watched", "err", err)
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

// apply is update, with an error as a Problem of the folder. All objects stay meanwhile.
func (f *Files) apply(events []event) {
	err := f.update(events)
	var p []cluster.Problem
	if err != nil {
		f.folder = nil // so that it is watched and compared again
		p = []cluster.Problem{{Object: cluster.Named("Folder", f.dir), Message: err.Error()}}
	}
	if errors.Is(err, fs.ErrNotExist) {
		p[0].Message = "is gone; put it back. All objects stay as they were until then"
	}
	f.builder.Report("folder", p)
}

// update reads the files that events name, or all that are new if the folder is another one.
func (f *Files) update(events []event) error {
	names, whole, gone := f.arrivals(events)
	replaced, err := f.watch(gone)
	if err != nil {
		return err
	}
	if whole || replaced {
		if err := f.compare(names); err != nil {
			return err
		}
	}
	f.look(names)
	return nil
}

// An arrival is how a file came to its name. The later ones replace the earlier.
type arrival int

const (
	touched arrival = iota // it was removed, or written in place
	listed                 // it is in the folder; how it came there is not known
	placed                 // a rename has put it in place, so it is whole
)

// arrivals returns the names in events. If one is in several, the last rename or creation decides. whole reports
// that all names must be compared, and gone that the watch may have ended.
func (f *Files) arrivals(events []event) (names map[string]arrival, whole, gone bool) {
	names = map[string]arrival{}
	for _, e := range events {
		switch {
		case e.has(unix.IN_Q_OVERFLOW), e.name == configMapData:
			whole = true // the kernel does not say which events it dropped
		case e.has(goneMask):
			gone = true
		case e.has(unix.IN_CLOSE_WRITE) && names[e.name] == placed:
			// A writer renamed the file before closing it. The complete content is read now.
		case e.has(unix.IN_MOVED_TO):
			names[e.name] = placed
		default:
			names[e.name] = touched
		}
	}
	for name := range names {
		if base, ok := strings.CutSuffix(name, backupSuffix); ok && f.files[base] != nil {
			names[base] = max(names[base], touched)
		}
	}
	return names, whole, gone
}

// watch watches the folder that is at the path now, if it is another one than before, or gone is set. The path may be
// a link that was swapped.
func (f *Files) watch(gone bool) (replaced bool, err error) {
	// The folder is looked at before it is watched: if it is replaced between, the next call notices.
	st, err := os.Stat(f.dir)
	if err != nil || !gone && f.folder != nil && os.SameFile(st, f.folder) {
		return false, err
	}
	events, err := openInotify(f.dir)
	if err != nil {
		return false, err
	}
	if f.events != nil {
		f.events.Close()
	}
	f.events, f.folder = events, st
	return true, nil
}

// compare adds the names in the folder, and those of known files.
func (f *Files) compare(names map[string]arrival) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for name := range f.files {
		names[name] = max(names[name], touched)
	}
	for _, e := range entries {
		names[e.Name()] = max(names[e.Name()], listed)
	}
	return nil
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

// look inspects files on all cores, and applies the findings in the order of their names: the result must not depend on
// which file was read first.
func (f *Files) look(names map[string]arrival) {
	list := slices.DeleteFunc(slices.Sorted(maps.Keys(names)), ignored)
	found := make([]finding, len(list))
	onAllCores(len(list), func(i int) { found[i] = f.inspect(list[i], names[list[i]]) })
	for i, name := range list {
		f.take(name, found[i])
	}
}

// onAllCores calls f with 0 to n-1, on all cores, and returns when all calls have returned.
func onAllCores(n int, f func(int)) {
	workqueue.ParallelizeUntil(context.Background(), goruntime.GOMAXPROCS(0), n, f)
}

// A finding is what inspect has found at a name. The zero value: nothing has changed.
type finding struct {
	gone bool
	read fs.FileInfo // nil: the file was not read
	docs []document
	err  error // why the file was not read, or a *syntaxError
}

// inspect reads the file with a name, or finds why it must not be read. It changes nothing, so that many files can be
// inspected at once.
func (f *Files) inspect(name string, how arrival) finding {
	path := filepath.Join(f.dir, name)
	known := f.files[name]
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && known != nil && known.isAt(path+backupSuffix):
		return finding{err: errors.New("was renamed to " + name + backupSuffix +
			", as editors do before they write in place" + cluster.StaysInUse)}
	case errors.Is(err, fs.ErrNotExist):
		return finding{gone: true}
	case err != nil:
		return finding{err: err}
	case !st.Mode().IsRegular():
		return finding{gone: true}
	case how == placed, how == listed && !known.is(st), linked(path, st) && !known.is(st):
		return load(path, known, f.saved)
	case known != nil && known.unchanged(st):
		return finding{} // it was opened for writing and closed again, or renamed back
	}
	return finding{err: errors.New(
		"written in place; write it elsewhere on the same filesystem and rename it into the folder")}
}

// load reads and decodes a file.
func load(path string, known *file, saved map[cluster.Key]runtime.Object) finding {
	b, st, err := readFile(path)
	if err != nil {
		return finding{err: err}
	}
	var old []document
	if known != nil {
		old = known.docs
	}
	docs, err := decodeFile(path, b, old, saved)
	return finding{read: st, docs: docs, err: err}
}

// backupSuffix is what vi, emacs and others append to the name of a file before they write it in
// place.
const backupSuffix = "~"

// take applies a finding. A file that has become unreadable as a whole keeps its objects. If another file also has an
// object of a removed one, that one is used.
func (f *Files) take(name string, found finding) {
	fl := f.files[name]
	switch {
	case found.gone && fl == nil, !found.gone && found.read == nil && found.err == nil:
		return
	case found.gone:
		f.logFile("file removed", name, fl.docs)
		f.setDocuments(fl, nil)
		delete(f.files, name)
		return
	case fl == nil:
		fl = &file{name: name}
		f.files[name] = fl
	}
	var stays string
	if len(fl.docs) != 0 {
		stays = cluster.StaysInUse
	}
	var syntax *syntaxError
	bad, unknown := unknown(found.docs)
	switch {
	case found.read == nil:
		f.setProblem(fl, 0, found.err.Error())
		return
	case errors.As(found.err, &syntax):
		f.setProblem(fl, syntax.line, syntax.message+stays)
	case unknown && stays != "":
		f.setProblem(fl, bad.line, bad.items[0].problems[0].Message+stays)
	default:
		f.logFile("file read", name, found.docs)
		f.setDocuments(fl, found.docs)
	}
	fl.read = found.read
}

// logFile writes a line about a file.
func (f *Files) logFile(event, name string, docs []document) {
	f.log.Log(context.Background(), f.level, event, "file", name, "objects", len(goodObjects(docs)))
}

// setProblem sets a Problem of the file itself. Its objects stay.
func (f *Files) setProblem(fl *file, line int, message string) {
	at := fl.name
	if line != 0 {
		at = fmt.Sprintf("%s:%d", fl.name, line)
	}
	fl.fileProblem = []cluster.Problem{{Object: cluster.Named("File", fl.name), File: at, Message: message}}
	f.builder.Report("file "+fl.name, fl.problems())
}

// setDocuments replaces the objects and Problems of a file.
func (f *Files) setDocuments(fl *file, docs []document) {
	before, now := goodObjects(fl.docs), goodObjects(docs)
	fl.docs, fl.fileProblem = docs, nil
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
			p = append(p, cluster.Problem{
				Object: key, File: o.file, Message: "is in " + list[0].file + " too, which counts; remove one of them",
			})
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
				p = append(p, slices.Clone(it.problems).Of(cluster.Named("File", fl.name), at)...)
				continue
			}
			p = append(p, it.report().Of(it.key, fl.name)...)
			if seen[it.key] {
				p = append(p, cluster.Problem{
					Object: it.key, File: at, Message: "is in this file before, and that counts; remove one of them",
				})
			}
			seen[it.key] = true
		}
	}
	return p
}

// is reports whether st is the file that was read, perhaps with other content.
func (fl *file) is(st fs.FileInfo) bool { return fl != nil && os.SameFile(fl.read, st) }

// unchanged reports whether st is the file that was read, with the same size and modification time.
func (fl *file) unchanged(st fs.FileInfo) bool {
	return fl.is(st) && fl.read.Size() == st.Size() && fl.read.ModTime().Equal(st.ModTime())
}

// isAt reports whether path still names the file that was read.
func (fl *file) isAt(path string) bool {
	st, err := os.Stat(path)
	return err == nil && fl.is(st)
}
