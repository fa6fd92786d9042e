package bgp

// A Password is the key that both ends sign their packets with (RFC 2385). No log, status or
// file contains it.
type Password string

const hidden = "(hidden)"

func (Password) String() string { return hidden }

// GoString is for %#v.
func (Password) GoString() string { return hidden }

// MarshalText is for JSON and logs.
func (Password) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// UnmarshalText makes it empty: a Session that was written to a file has lost its password.
func (p *Password) UnmarshalText([]byte) error {
	*p = ""
	return nil
}
