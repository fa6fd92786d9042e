package gossip

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	tagBytes    = 16 // of AES-GCM
	cipherNonce = 12
	streamNonce = 16
	maxRecord   = 16 << 10 // bytes of plain text
	// maxUnproven is how many connections from one address may have shown no key at a time. A
	// speaker has a few, for a round trip each.
	maxUnproven = 32
)

var errUnknownKey = errors.New("sealed with another key, not sealed, or a copy of an earlier connection")

// deriveCipher returns AES-256-GCM with a key that is derived from another one, for one use.
func deriveCipher(k key, use string) cipher.AEAD {
	derived := mustCipher(hkdf.Key(sha256.New, k[:], nil, use, len(k)))
	return mustCipher(cipher.NewGCM(mustCipher(aes.NewCipher(derived))))
}

// mustCipher is for functions that fail only if a length is wrong: all lengths are constants.
func mustCipher[T any](v T, err error) T {
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return v
}

// nonceOf is the nonce of AES-GCM with a number.
func nonceOf(seq uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, cipherNonce-8, cipherNonce), seq)
}

// A sealedConn is a connection of memberlist, in sealed records. Each side begins with random
// bytes, from which the keys of this connection are derived: a copy of an earlier
// connection's records cannot be opened by either side.
//
// The exchange takes place in the first Write of the side that has connected, and in the
// first Read of the other one: memberlist has set its deadline then.
type sealedConn struct {
	net.Conn
	transport *sealedTransport
	dialed    bool
	nonces    []byte // of the side that has connected, and of the other; nil before the exchange
	in, out   records
	rest      []byte // opened, and not read yet
}

// records are those of one direction.
type records struct {
	aead cipher.AEAD // nil: the key is not known yet
	seq  uint64
}

func (r *records) seal(b []byte) []byte {
	r.seq++
	length := binary.BigEndian.AppendUint16(nil, uint16(len(b)+tagBytes))
	return r.aead.Seal(length, nonceOf(r.seq), b, nil)
}

func (r *records) open(b []byte) ([]byte, error) {
	plain, err := r.aead.Open(nil, nonceOf(r.seq+1), b, nil)
	if err == nil {
		r.seq++
	}
	return plain, err
}

// DialTimeout connects.
func (t *sealedTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	c, err := t.Transport.DialTimeout(addr, timeout)
	if err != nil {
		return nil, err
	}
	return &sealedConn{Conn: c, transport: t, dialed: true}, nil
}

func (t *sealedTransport) accepted(c net.Conn) net.Conn {
	s := &sealedConn{Conn: c, transport: t}
	t.unproven.add(s)
	return s
}

// Close closes the connection.
func (c *sealedConn) Close() error {
	c.transport.unproven.remove(c)
	return c.Conn.Close()
}

// unproven are the connections from each address that have shown no key yet. Pods reach other nodes
// from the address of their own one, where that is masqueraded.
type unproven struct {
	mu sync.Mutex
	of map[netip.Addr][]*sealedConn
}

// add adds a connection. If its address has too many, the oldest is closed, and not the new one: a
// speaker shows the key within a round trip, so that it is rarely the oldest.
func (u *unproven) add(c *sealedConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[netip.Addr][]*sealedConn{}
	}
	from := addrPortOf(c.RemoteAddr()).Addr()
	all := append(u.of[from], c)
	if len(all) > maxUnproven {
		all[0].Conn.Close()
		all = slices.Delete(all, 0, 1)
	}
	u.of[from] = all
}

// remove removes a connection, if it is there.
func (u *unproven) remove(c *sealedConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	from := addrPortOf(c.RemoteAddr()).Addr()
	all := slices.DeleteFunc(u.of[from], func(o *sealedConn) bool { return o == c })
	if len(all) == 0 {
		delete(u.of, from)
	} else {
		u.of[from] = all
	}
}

// begin exchanges the random bytes. The side that has connected chooses the key.
func (c *sealedConn) begin() error {
	if c.nonces != nil {
		return nil
	}
	own, other := make([]byte, streamNonce), make([]byte, streamNonce)
	rand.Read(own) // It never fails, or ends the process.
	steps := []func() error{
		func() error { _, err := c.Conn.Write(own); return err },
		func() error { _, err := io.ReadFull(c.Conn, other); return err },
	}
	if !c.dialed {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if !c.dialed {
		c.nonces = append(other, own...)
		return nil
	}
	c.nonces = append(own, other...)
	c.use(c.transport.gossip.keysInUse.Load().use)
	return nil
}

// use derives the keys of both directions.
func (c *sealedConn) use(k key) {
	c.out, c.in = records{aead: deriveCipher(k, "fanfare stream to "+string(c.nonces))},
		records{aead: deriveCipher(k, "fanfare stream from "+string(c.nonces))}
	if !c.dialed {
		c.in, c.out = c.out, c.in
	}
}

// Write sends records.
func (c *sealedConn) Write(b []byte) (n int, err error) {
	if c.dialed {
		if err := c.begin(); err != nil {
			return 0, err
		}
	}
	if c.out.aead == nil {
		return 0, errUnknownKey // Nothing was received that shows the key.
	}
	for len(b) > n {
		part := b[n:min(len(b), n+maxRecord)]
		if _, err := c.Conn.Write(c.out.seal(part)); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Read returns what the next record has.
func (c *sealedConn) Read(b []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	for len(c.rest) == 0 {
		var length [2]byte
		if _, err := io.ReadFull(c.Conn, length[:]); err != nil {
			return 0, err
		}
		size := binary.BigEndian.Uint16(length[:])
		if size > maxRecord+tagBytes {
			c.transport.gossip.rejectSeal(addrPortOf(c.RemoteAddr()).Addr())
			return 0, errUnknownKey
		}
		record := make([]byte, size)
		if _, err := io.ReadFull(c.Conn, record); err != nil {
			return 0, err
		}
		var err error
		if c.rest, err = c.open(record); err != nil {
			c.transport.gossip.rejectSeal(addrPortOf(c.RemoteAddr()).Addr())
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// open opens a record. The first one shows which key the other side uses.
func (c *sealedConn) open(record []byte) ([]byte, error) {
	if c.in.aead != nil {
		return c.in.open(record)
	}
	for _, k := range c.transport.gossip.keysInUse.Load().accepted {
		c.use(k)
		if b, err := c.in.open(record); err == nil {
			c.transport.unproven.remove(c)
			return b, nil
		}
	}
	c.in, c.out = records{}, records{}
	return nil, errUnknownKey
}
