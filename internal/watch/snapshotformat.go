package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// fileVersion is stored in the file. A file of another version is not read, because its fields may
// have another meaning.
const fileVersion = 9

// A savedSnapshot is the content of the file. It lacks Problems and Versions: they are about
// objects that the API server has, which may have changed by then.
type savedSnapshot struct {
	Version  int
	Snapshot *cluster.Snapshot // without the lists that may be long
	Services []cluster.Service `json:",omitempty"`
	Claims   []*cluster.Claim  `json:",omitempty"`
	// Assignments may differ from the Services' status.
	Assignments []cluster.Assignment `json:",omitempty"`
}

// WriteSnapshot writes a snapshot to a file, for a speaker that starts while the API server does
// not answer.
func WriteSnapshot(path string, s *cluster.Snapshot) error {
	if err := replaceFile(path, func(w *bufio.Writer) error { return write(w, s) }); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// replaceFile replaces a file: after a crash it is either the old or the new one.
func replaceFile(path string, write func(*bufio.Writer) error) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	if err := errors.Join(write(w), w.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// write encodes one object after the other. encoding/json keeps its buffers, and a buffer for 5,000
// Services at once was a third of a speaker's memory.
func write(w *bufio.Writer, s *cluster.Snapshot) error {
	short := *s
	short.Problems, short.Versions = nil, nil
	head, err := json.Marshal(savedSnapshot{Version: fileVersion, Snapshot: &short})
	if err != nil {
		return err
	}
	w.Write(bytes.TrimSuffix(head, []byte("}")))
	err = errors.Join(writeList(w, "Services", s.Services.All()), writeList(w, "Claims", s.Claims.All()),
		writeList(w, "Assignments", s.Assignments.All()))
	w.WriteString("}")
	return err
}

// writeList writes a field that is a list, element by element. A bufio.Writer keeps its first error, which Flush
// returns.
func writeList[T any](w *bufio.Writer, name string, list iter.Seq[T]) error {
	fmt.Fprintf(w, ",%q:[", name)
	encoder, separator := json.NewEncoder(w), ""
	for v := range list {
		w.WriteString(separator)
		if err := encoder.Encode(v); err != nil {
			return err
		}
		separator = ","
	}
	return w.WriteByte(']')
}

// ReadSnapshot reads the snapshot in a file. The error says that there is
// no file, or none that this version can read.
func ReadSnapshot(path string) (*cluster.Snapshot, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	var r savedSnapshot
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read snapshot: %s: %w", path, err)
	}
	if r.Version != fileVersion || r.Snapshot == nil {
		return nil, fmt.Errorf("read snapshot: %s: version %d, want %d", path, r.Version, fileVersion)
	}
	r.Snapshot.Services, r.Snapshot.Claims, r.Snapshot.Assignments = cluster.ServiceSet(r.Services...),
		cluster.ClaimSet(r.Claims...), cluster.AssignmentSet(r.Assignments...)
	return r.Snapshot, nil
}
