package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Lock ensures that only one speaker at a time uses the run directory. The kernel releases the lock
// when the process ends, in any way.
func Lock(runDir string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := lockFile.in(runDir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another speaker runs with the run directory %s; give this one its own by --run-dir",
				runDir)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// Running reports whether a speaker uses the run directory.
func Running(runDir string) bool {
	if _, err := os.Stat(lockFile.in(runDir)); err != nil {
		return false // lock would create the file
	}
	release, err := Lock(runDir)
	if err != nil {
		return true
	}
	release()
	return false
}

// Cleanup removes what speakers leave in the run directory.
func Cleanup(runDir string) error {
	var errs []error
	for _, file := range files {
		if err := os.Remove(file.in(runDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
