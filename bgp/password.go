package bgp

// A Password is what both ends sign their packets with (RFC 2385). Nothing that
// prints it shows it.
type Password string

const hidden = "(hidden)"

func (Password) String() string { return hidden }

// GoString is for %#v.
func (Password) GoString() string { return hidden }

// MarshalText is for JSON and logs.
func (Password) MarshalText() ([]byte, error) { return []byte(hidden), nil }
