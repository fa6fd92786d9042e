package watch

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

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

// linked reports whether a name is a link, symbolic or hard, to a file that was whole before it had this name.
func linked(path string, st fs.FileInfo) bool {
	l, err := os.Lstat(path)
	return err == nil && (l.Mode()&fs.ModeSymlink != 0 || st.Sys().(*syscall.Stat_t).Nlink > 1)
}
