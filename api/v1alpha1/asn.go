package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// MaxASN is the highest AS number (RFC 6793).
const MaxASN = 4294967295

// A PeerASN is the AS number that a router has, or the word "internal".
//
// There is no "external" for "whatever the router says as long as it is not
// ours": GoBGP, told to accept any number, accepts our own too, and then treats
// the session as neither kind when it chooses a TTL.
type PeerASN struct {
	Number   int64 `json:"-"` // 1 to MaxASN, unless Internal
	Internal bool  `json:"-"` // the same AS as ours: iBGP
}

// internal is how PeerASN.Internal is written.
const internal = "internal"

func (a PeerASN) String() string {
	if a.Internal {
		return internal
	}
	return strconv.FormatInt(a.Number, 10)
}

// MarshalJSON writes a number or a word.
func (a PeerASN) MarshalJSON() ([]byte, error) {
	if a.Internal {
		return json.Marshal(internal)
	}
	return json.Marshal(a.Number)
}

// UnmarshalJSON reads a number or a word. intstr.IntOrString would not do: its
// number has 32 bits and a sign.
func (a *PeerASN) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		if word != internal && string(b) != "null" {
			return fmt.Errorf("must be a number, without quotes, or %q", internal)
		}
		*a = PeerASN{Internal: word == internal}
		return nil
	}
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("must be a number from 1 to %d or %q", MaxASN, internal)
	}
	*a = PeerASN{Number: n}
	return nil
}
