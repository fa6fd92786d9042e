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
// kubelet updates a mounted Secret within a minute or two.
const keyDelay = 5 * time.Minute

// minKey is the minimum length of a key's line in bytes: the hash of a guessable text is a
// guessable key.
const minKey = 16

// A key is the SHA-256 of a line of the key file: exactly what AES-256 takes.
type key [sha256.Size]byte

// String keeps keys out of logs.
func (key) String() string { return "(hidden)" }

// GoString is for %#v.
func (key) GoString() string { return "(hidden)" }

var errNoKey = errors.New("has no key in it; write a line of random text, such as `openssl rand -base64 32` prints")

// readKeys reads the key file when it is due. After an error the known keys stay in use.
func (g *Gossip) readKeys(now time.Time) {
	if now.Sub(g.readAt) < keyInterval {
		return
	}
	g.readAt = now
	keys, err := readKeys(g.KeyFile)
	g.mu.Lock()
	g.problems.set("key", now, err)
	g.mu.Unlock()
	switch {
	case err == nil:
		g.keys.update(keys, now)
	case len(g.keys.file) > 0:
		g.keys.choose(now)
	default:
		return
	}
	g.keysInUse.Store(&keysInUse{g.keys.use, g.keys.accepted()})
}

// keysInUse are a keyring's keys at one time. They are immutable.
type keysInUse struct {
	use      key   // seals
	accepted []key // open, and include use
}

// readKeys reads a key file: one key a line, of which the first one encrypts. Empty lines and
// comments, which begin with #, are skipped. If the file does not exist, the error wraps
// os.ErrNotExist. No error contains a key.
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

// A keyring is the accepted keys and the key that encrypts.
type keyring struct {
	file    []key             // in the order of the file
	since   map[key]time.Time // of the accepted keys: when each appeared
	removed map[key]time.Time // of the accepted keys that the file no longer has: since when
	use     key               // encrypts
}

// update takes the keys of the file.
func (ring *keyring) update(file []key, now time.Time) {
	if ring.since == nil {
		ring.since, ring.removed = map[key]time.Time{}, map[key]time.Time{}
	}
	for _, k := range ring.file {
		if !slices.Contains(file, k) {
			ring.removed[k] = now
		}
	}
	for _, k := range file {
		delete(ring.removed, k)
		if _, known := ring.since[k]; !known {
			ring.since[k] = now
		}
	}
	ring.file = slices.Clone(file)
	ring.choose(now)
}

// choose decides which key encrypts, and drops removed keys once the nodes that read the
// file last no longer use them either.
func (ring *keyring) choose(now time.Time) {
	first := ring.file[0]
	switch _, usable := ring.since[ring.use]; {
	case now.Sub(ring.since[first]) >= keyDelay:
		ring.use = first
	case usable:
		// All other nodes have it, since it is in use.
	case len(ring.file) > 1:
		// This process has just started and does not know when the first key appeared. The
		// second one was used before.
		ring.use = ring.file[1]
	default:
		ring.use = first
	}
	for k, at := range ring.removed {
		if now.Sub(at) >= 2*keyDelay && k != ring.use {
			delete(ring.removed, k)
			delete(ring.since, k)
		}
	}
}

// accepted returns all keys that decrypt, sorted.
func (ring *keyring) accepted() (keys []key) {
	for k := range ring.since {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return bytes.Compare(a[:], b[:]) })
	return keys
}
