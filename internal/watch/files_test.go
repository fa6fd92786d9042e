package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A folder is a real folder and the Files that watch it.
type folder struct {
	*testing.T
	dir string
	*Files
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	return &folder{T: t, dir: filepath.Join(t.TempDir(), "fanfare.d")}
}

func (f *folder) open() {
	f.Helper()
	must(f, os.MkdirAll(f.dir, 0o755))
	files, err := OpenFiles(f.Context(), f.dir, nil, quiet)
	must(f, err)
	f.Files = files
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes in place.
func (f *folder) write(name, text string) {
	f.Helper()
	must(f, os.MkdirAll(filepath.Dir(filepath.Join(f.dir, name)), 0o755))
	must(f, os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644))
}

// put renames into place.
func (f *folder) put(name, text string) {
	f.Helper()
	f.write(name+".tmp", text)
	must(f, os.Rename(filepath.Join(f.dir, name+".tmp"), filepath.Join(f.dir, name)))
}

// await waits for a snapshot that, written as names, is want.
func (f *folder) await(want string) *cluster.Snapshot {
	f.Helper()
	timeout := time.After(time.Minute)
	for {
		s := f.Snapshot()
		got := summary(s)
		if got == want {
			return s
		}
		select {
		case <-f.Changed():
		case <-timeout:
			f.Fatalf("got %s, want %s\n%v", got, want, s.Problems)
		}
	}
}

// summary is the names of Services with their first port, and of what has
// Problems.
func summary(s *cluster.Snapshot) string {
	var out []string
	for svc := range s.Services.All() {
		out = append(out, fmt.Sprintf("%s:%d", svc.Name.Name, svc.Ports[0].Port))
	}
	for _, p := range s.Problems {
		out = append(out, "!"+strings.TrimPrefix(p.Object.String(), "File "))
	}
	return strings.Join(out, " ")
}

func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, "+
		"ports: [{port: %d}]}\n", name, port)
}

const brokenYAML = "apiVersion: v1\nkind: Service\nmetadata: {name: a\nspec: {}\n"

func TestFilesRename(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", service("a", 1))
	f.open()
	f.await("a:1")
	f.put("b.yaml", service("b", 1)+"---\n"+service("c", 1))
	f.await("a:1 b:1 c:1")
	f.put("b.yaml", service("c", 2))
	f.await("a:1 c:2")
	must(f, os.Rename(filepath.Join(f.dir, "b.yaml"), filepath.Join(f.dir, "z.json.off")))
	f.await("a:1")
	must(f, os.Remove(filepath.Join(f.dir, "a.yaml")))
	f.await("")
}

func TestFilesWrittenInPlace(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", service("a", 1))
	f.open()
	f.write("b.yaml", service("b", 1)) // a new one
	f.await("a:1 !b.yaml")
	f.write("a.yaml", service("a", 22)) // over one that was read
	s := f.await("a:1 !a.yaml !b.yaml")
	if m := s.Problems[0].Message; !strings.Contains(m, "rename it into the folder") {
		t.Errorf("message %q does not say what to do", m)
	}
	f.put("b.yaml", service("b", 2))
	f.await("a:1 b:2 !a.yaml")
	f.put("a.yaml", service("a", 3))
	f.await("a:3 b:2")
	f.write("c.yaml", service("c", 1))
	f.await("a:3 b:2 !c.yaml")
	must(f, os.Remove(filepath.Join(f.dir, "c.yaml")))
	f.await("a:3 b:2")
	// Opened for writing, and closed as it was: nothing is wrong. What comes
	// after it shows that it was looked at.
	r, err := os.OpenFile(filepath.Join(f.dir, "a.yaml"), os.O_WRONLY, 0)
	must(f, err)
	must(f, r.Close())
	f.put("z.yaml", service("z", 1))
	f.await("a:3 b:2 z:1")
}

// An editor that renames the file away before it writes in place must not take
// its objects away.
func TestFilesEditorsBackup(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", service("a", 1))
	f.open()
	path := filepath.Join(f.dir, "a.yaml")
	must(f, os.Rename(path, path+"~"))
	f.await("a:1 !a.yaml")
	f.write("a.yaml", service("a", 2))
	must(f, os.Remove(path+"~"))
	f.put("b.yaml", service("b", 1))
	s := f.await("a:1 b:1 !a.yaml")
	if !strings.Contains(s.Problems[0].Message, "written in place") {
		t.Errorf("problem %s", s.Problems[0])
	}
	f.put("a.yaml", service("a", 2))
	f.await("a:2 b:1")
	must(f, os.Rename(path, path+"~")) // and this time it is meant
	f.await("a:2 b:1 !a.yaml")
	must(f, os.Remove(path+"~"))
	f.await("b:1")
}

func TestFilesMistakes(t *testing.T) {
	f := newFolder(t)
	f.open()
	f.put("a.yaml", brokenYAML)
	s := f.await("!a.yaml")
	if p := s.Problems[0]; p.File != "a.yaml:3" {
		t.Errorf("file %q, want a.yaml:3", p.File)
	}
	f.put("a.yaml", service("a", 1)+"---\n"+service("b", 1))
	f.await("a:1 b:1")
	for what, text := range map[string]string{
		"no YAML":        service("a", 2) + "---\n" + brokenYAML,
		"no such kind":   service("a", 2) + "---\napiVersion: v1\nkind: Servce\nmetadata: {name: b}\n",
		"no object":      "all quiet\n",
		"cut in a value": service("a", 2)[:70],
	} {
		f.put("a.yaml", text)
		s := f.await("a:1 b:1 !a.yaml")
		if m := s.Problems[0].Message; !strings.HasSuffix(m, cluster.StaysInUse) {
			t.Errorf("%s: message %q does not say that the old version stays", what, m)
		}
	}
	// A wrong type is one object's mistake: the others are taken.
	f.put("a.yaml", strings.Replace(service("a", 2), "port: 2", "port: two", 1)+"---\n"+service("b", 2))
	f.await("a:1 b:2 !Service default/a")
	f.put("a.yaml", service("a", 3))
	f.await("a:3")
}

func TestFilesCopies(t *testing.T) {
	f := newFolder(t)
	f.write("b.yaml", service("a", 2))
	f.open()
	f.await("a:2")
	f.put("c.yaml", service("a", 3))
	f.await("a:2 !Service default/a")
	f.put("a.yaml", service("a", 1))
	f.await("a:1 !Service default/a !Service default/a")
	must(f, os.Remove(filepath.Join(f.dir, "a.yaml")))
	f.await("a:2 !Service default/a")
	must(f, os.Remove(filepath.Join(f.dir, "b.yaml")))
	f.await("a:3")
}

func TestFilesLinks(t *testing.T) {
	f := newFolder(t)
	f.open()
	elsewhere := filepath.Join(t.TempDir(), "a")
	must(f, os.WriteFile(elsewhere, []byte(service("a", 1)), 0o644))
	must(f, os.Symlink(elsewhere, filepath.Join(f.dir, "s.yaml")))
	f.await("a:1")
	must(f, os.Remove(filepath.Join(f.dir, "s.yaml")))
	f.await("")
	inside := filepath.Join(f.dir, "a.tmp")
	must(f, os.WriteFile(inside, []byte(service("b", 1)), 0o644))
	must(f, os.Link(inside, filepath.Join(f.dir, "h.yaml")))
	f.await("b:1")
}

// A kubelet keeps the files of a ConfigMap in a folder of their own, and swaps
// the link to it.
func TestFilesConfigMap(t *testing.T) {
	f := newFolder(t)
	f.write("..1/a.yaml", service("a", 1))
	f.write("..1/b.yaml", service("b", 1))
	must(f, os.Symlink("..1", filepath.Join(f.dir, "..data")))
	for _, name := range []string{"a.yaml", "b.yaml"} {
		must(f, os.Symlink("..data/"+name, filepath.Join(f.dir, name)))
	}
	f.open()
	before := f.await("a:1 b:1")
	f.write("..2/a.yaml", service("a", 1))
	f.write("..2/b.yaml", service("b", 2))
	must(f, os.Symlink("..2", filepath.Join(f.dir, "..data_tmp")))
	must(f, os.Rename(filepath.Join(f.dir, "..data_tmp"), filepath.Join(f.dir, "..data")))
	after := f.await("a:1 b:2")
	if before.Services.At(0) != after.Services.At(0) {
		t.Error("a file whose content did not change made another Service")
	}
	must(f, os.Symlink("..1", filepath.Join(f.dir, "..data_tmp")))
	must(f, os.Remove(filepath.Join(f.dir, "..1/a.yaml")))
	must(f, os.Rename(filepath.Join(f.dir, "..data_tmp"), filepath.Join(f.dir, "..data")))
	f.await("b:1") // a.yaml is a link to nothing now
}

func TestFilesFolderReplaced(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", service("a", 1))
	f.write("b.yaml", service("b", 1))
	f.open()
	f.await("a:1 b:1")
	must(f, os.Rename(f.dir, f.dir+".old"))
	f.await("a:1 b:1 !Folder " + f.dir)
	must(f, os.Rename(f.dir+".old", f.dir))
	f.await("a:1 b:1")
	f.put("c.yaml", service("c", 1)) // It is watched again.
	f.await("a:1 b:1 c:1")

	// Another folder takes its place.
	must(f, os.MkdirAll(f.dir+".new", 0o755))
	must(f, os.WriteFile(f.dir+".new/a.yaml", []byte(service("a", 2)), 0o644))
	must(f, os.Rename(f.dir, f.dir+".old"))
	must(f, os.Rename(f.dir+".new", f.dir))
	f.await("a:2")

	// The folder above goes too, and comes back step by step.
	must(f, os.Rename(filepath.Dir(f.dir), filepath.Dir(f.dir)+".gone"))
	f.await("a:2 !Folder " + f.dir)
	must(f, os.MkdirAll(f.dir, 0o755))
	f.await("")
	f.put("d.yaml", service("d", 1))
	f.await("d:1")
}

// The path that was given may itself be a link, which is swapped.
func TestFilesFolderIsALink(t *testing.T) {
	f := newFolder(t)
	base := filepath.Dir(f.dir)
	for i := range 2 {
		dir := filepath.Join(base, fmt.Sprint("v", i))
		must(f, os.Mkdir(dir, 0o755))
		must(f, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(service("a", i+1)), 0o644))
	}
	must(f, os.Symlink("v0", f.dir))
	f.open()
	f.await("a:1")
	must(f, os.Symlink("v1", f.dir+".next"))
	must(f, os.Rename(f.dir+".next", f.dir))
	f.await("a:2")
	f.put("b.yaml", service("b", 1))
	f.await("a:2 b:1")
}

// A link on the path to the folder may be swapped, too.
func TestFilesFolderBelowALink(t *testing.T) {
	f := newFolder(t)
	base := filepath.Dir(f.dir)
	for i := range 2 {
		dir := filepath.Join(base, fmt.Sprint("v", i), "fanfare.d")
		must(f, os.MkdirAll(dir, 0o755))
		must(f, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(service("a", i+1)), 0o644))
	}
	must(f, os.Symlink("v0", filepath.Join(base, "current")))
	f.dir = filepath.Join(base, "current", "fanfare.d")
	f.open()
	f.await("a:1")
	must(f, os.Symlink("v1", filepath.Join(base, "next")))
	must(f, os.Rename(filepath.Join(base, "next"), filepath.Join(base, "current")))
	f.await("a:2")
}

func TestFilesNotFiles(t *testing.T) {
	f := newFolder(t)
	must(f, os.MkdirAll(filepath.Join(f.dir, "folder.yaml"), 0o755))
	must(f, syscall.Mkfifo(filepath.Join(f.dir, "pipe.yaml"), 0o644))
	f.open()
	f.await("")
	must(f, os.Mkdir(filepath.Join(f.dir, "another.yaml"), 0o755))
	f.put("a.yaml", service("a", 1))
	f.await("a:1")
}

func TestOpenFilesMissing(t *testing.T) {
	if _, err := OpenFiles(t.Context(), filepath.Join(t.TempDir(), "none"), nil, quiet); err == nil {
		t.Error("no error for a folder that is not there")
	}
}

// The kernel drops events when too many are waiting. Then everything is
// compared: what was renamed is read, what was written in place is not.
func TestFilesOverflow(t *testing.T) {
	f := newFolder(t)
	for i := range 3 {
		f.write(fmt.Sprintf("%d.yaml", i), service(fmt.Sprint("s", i), 1))
	}
	files, err := ReadFiles(f.dir, nil, cluster.Scope{}, quiet)
	must(f, err)
	// No test reads these events, as if they had been lost.
	f.write("0.yaml", service("s0", 222))
	f.put("1.yaml", service("s1", 2))
	must(f, os.Remove(filepath.Join(f.dir, "2.yaml")))
	f.put("3.yaml", service("s3", 3))
	files.apply(parseEvents(overflowEvent))
	files.publish()
	if got, want := summary(files.Snapshot()), "s0:1 s1:2 s3:3 !0.yaml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// overflowEvent is what inotify(7) says: wd -1, IN_Q_OVERFLOW, no name.
var overflowEvent = []byte{0xff, 0xff, 0xff, 0xff, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

func TestFilesThousand(t *testing.T) {
	f := newFolder(t)
	var want []string
	for i := range 1000 {
		name := fmt.Sprintf("s%04d", i)
		f.write(name+".yaml", service(name, 1))
		want = append(want, name+":1")
	}
	f.open()
	f.await(strings.Join(want, " "))
	for i := range 1000 { // while they are being read
		name := fmt.Sprintf("s%04d", i)
		f.put(name+".yaml", service(name, 2))
		want[i] = name + ":2"
	}
	f.await(strings.Join(want, " "))
	for i := range 500 {
		must(f, os.Remove(filepath.Join(f.dir, fmt.Sprintf("s%04d.yaml", i))))
	}
	f.await(strings.Join(want[500:], " "))
}

// The objects of a file that did not change keep their pointers.
func TestFilesShareWithinAFile(t *testing.T) {
	f := newFolder(t)
	f.open()
	text := func(c int) string {
		return "# Some Services.\n" + service("a", 1) + "---\n" + service("b", 1) + "---\n" + service("c", c)
	}
	f.put("a.yaml", text(1))
	before := f.await("a:1 b:1 c:1")
	f.put("a.yaml", text(2))
	after := f.await("a:1 b:1 c:2")
	if !slices.Equal(before.Services.Slice()[:2], after.Services.Slice()[:2]) {
		t.Error("other Services although only c changed")
	}
}

func TestFilesStopWithContext(t *testing.T) {
	f := newFolder(t)
	must(f, os.MkdirAll(f.dir, 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	files, err := OpenFiles(ctx, f.dir, nil, quiet)
	must(f, err)
	cancel()
	for { // Read ends when the file is closed, or with what the goroutine waits for.
		if _, err := files.events.Read(make([]byte, 1)); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}
