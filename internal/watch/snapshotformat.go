package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// fileVersion is stored in the file. A file of another version is not read, because its fields may
// have another meaning.
const fileVersion = 9

// A savedSnapshot is the content of the file. It lacks Problems and Versions: they are about
// objects that the API server has, which may have changed by then.
type savedSnapshot struct {
	Version  int
	Written  time.Time
	Snapshot *cluster.Snapshot // without the lists that may be long
	Services []cluster.Service `json:",omitempty"`
	Claims   []*cluster.Claim  `json:",omitempty"`
	// Assignments may differ from the Services' status.
	Assignments []cluster.Assignment `json:",omitempty"`
}

// WriteSnapshot writes a snapshot to a file, for a speaker that starts while the API server does
// not answer. After a crash the file is either the old or the new one.
func WriteSnapshot(path string, s *cluster.Snapshot) error {
	temp := path + ".tmp"
	if err := write(temp, s); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// write encodes one object after the other. encoding/json keeps its buffers, and a buffer for 5,000
// Services at once was a third of a speaker's memory.
func write(path string, s *cluster.Snapshot) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	short := *s
	short.Problems, short.Versions = nil, nil
	head, err := json.Marshal(savedSnapshot{Version: fileVersion, Written: time.Now(), Snapshot: &short})
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	w.Write(bytes.TrimSuffix(head, []byte("}")))
	err = errors.Join(writeList(w, "Services", s.Services.All()), writeList(w, "Claims", s.Claims.All()), writeList(w, "Assignments", s.Assignments.All()))
	w.WriteString("}")
	return errors.Join(err, w.Flush(), f.Close())
}

// writeList writes a field that is a list, element by element. A bufio.Writer keeps its first error, which Flush returns.
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

// ReadSnapshot reads the snapshot in a file, and when it was written. The error says that there is
// no file, or none that this version can read.
func ReadSnapshot(path string) (*cluster.Snapshot, time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read snapshot: %w", err)
	}
	var r savedSnapshot
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, time.Time{}, fmt.Errorf("read snapshot: %s: %w", path, err)
	}
	if r.Version != fileVersion || r.Snapshot == nil {
		return nil, time.Time{}, fmt.Errorf("read snapshot: %s: version %d, want %d", path, r.Version, fileVersion)
	}
	r.Snapshot.Services, r.Snapshot.Claims, r.Snapshot.Assignments = cluster.ServiceSet(r.Services...), cluster.ClaimSet(r.Claims...), cluster.AssignmentSet(r.Assignments...)
	return r.Snapshot, r.Written, nil
}
