package gossip

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// keyDelay is how long it may take until all nodes have read a changed key file: a
// kubelet takes a minute or two to renew what it has mounted of a Secret.
const keyDelay = 5 * time.Minute

// minKey is the least length of a key's line in bytes. Hashing makes no good key of a
// guessable one.
const minKey = 16

// A key is the SHA-256 of a line of the key file: exactly what AES-256 takes.
type key [sha256.Size]byte

// String keeps keys out of logs.
func (key) String() string { return "(hidden)" }

// GoString is for %#v.
func (key) GoString() string { return "(hidden)" }

var errNoKey = errors.New("has no key in it; write a line of random text, such as `openssl rand -base64 32` prints")

// readKeys reads a key file: one key a line, the first one to be used; empty lines
// and those that begin with # do not count. A file that does not exist is an error
// that wraps os.ErrNotExist. No error has a key in it.
func readKeys(path string) ([]key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

func parseKeys(text []byte) (keys []key, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if len(line) < minKey {
			return nil, fmt.Errorf("line %d: a key of %d bytes; want %d or more, of random text", n, len(line), minKey)
		}
		if k := key(sha256.Sum256(line)); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	return keys, nil
}

// A keyring is what is known of keys, from one reading of the file to the next.
type keyring struct {
	file  []key // in the order of the file
	since map[key]time.Time
	gone  map[key]time.Time // those not in the file any more, and since when
	use   key
}

// read takes down what the file holds now.
func (r *keyring) read(file []key, now time.Time) {
	if r.since == nil {
		r.since, r.gone = map[key]time.Time{}, map[key]time.Time{}
	}
	for _, k := range r.file {
		if !slices.Contains(file, k) {
			r.gone[k] = now
		}
	}
	for _, k := range file {
		delete(r.gone, k)
		if _, known := r.since[k]; !known {
			r.since[k] = now
		}
	}
	r.file = slices.Clone(file)
	r.choose(now)
}

// choose decides which key to use and which to forget. One that has gone from the file
// is forgotten when those who read of it last use another, too.
func (r *keyring) choose(now time.Time) {
	first := r.file[0]
	switch _, usable := r.since[r.use]; {
	case now.Sub(r.since[first]) >= keyDelay:
		r.use = first
	case usable:
		// The others have it: it is in use.
	case len(r.file) > 1:
		// We have just started, and cannot know since when the first one is there. The
		// second is what was used before.
		r.use = r.file[1]
	default:
		r.use = first
	}
	for k, at := range r.gone {
		if now.Sub(at) >= 2*keyDelay && k != r.use {
			delete(r.gone, k)
			delete(r.since, k)
		}
	}
}

// accepted are all keys to take from others, sorted.
func (r *keyring) accepted() (keys []key) {
	for k := range r.since {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return bytes.Compare(a[:], b[:]) })
	return keys
}
