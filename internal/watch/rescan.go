package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// A content is what load found in a file.
type content struct {
	read fs.FileInfo // nil: the file cannot be read
	docs []document
	err  error // if the file was read: a *syntaxError
}

// load reads and decodes a file. It changes nothing, so that many files can be loaded at once.
func (f *Files) load(name string) content {
	b, st, err := readFile(filepath.Join(f.dir, name))
	if err != nil {
		return content{err: err}
	}
	c := content{read: st}
	var old []document
	if known := f.files[name]; known != nil {
		old = known.docs
	}
	c.docs, c.err = decodeFile(name, b, old, f.saved)
	return c
}

// rescan compares the whole folder with the known files: at the start, and when events were lost or
// the folder was replaced. It loads files on all cores and then applies them in the order of their
// names: the result must not depend on which was loaded first.
func (f *Files) rescan() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	others, loaded := make([]bool, len(entries)), make([]content, len(entries))
	onAllCores(len(entries), func(i int) {
		name := entries[i].Name()
		var regular bool
		if others[i], regular = f.compare(name); others[i] && regular && !ignored(name) {
			loaded[i] = f.load(name)
		}
	})
	seen := map[string]bool{}
	f.ahead = map[string]content{}
	for i, e := range entries {
		if c := loaded[i]; c.read != nil {
			f.ahead[e.Name()] = c
		}
		seen[e.Name()] = true
		f.look(e.Name(), others[i])
	}
	f.ahead = nil
	for name := range f.files {
		if !seen[name] {
			f.look(name, false)
		}
	}
	return nil
}

// compare reports whether a file is not the known one, so that it has to be read. If it is the same
// file with other content, it was written in place. regular is false for what must not be opened.
func (f *Files) compare(name string) (other, regular bool) {
	st, err := os.Stat(filepath.Join(f.dir, name))
	known := f.files[name]
	other = known == nil || err == nil && !os.SameFile(known.read, st)
	return other, err == nil && st.Mode().IsRegular()
}

// onAllCores calls f with 0 to n-1, on all cores, and returns when all calls have returned.
func onAllCores(n int, f func(int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}
