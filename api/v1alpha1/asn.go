package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// MaxASN is the highest AS number (RFC 6793).
const MaxASN = 4294967295

// A PeerASN is a router's AS number, or one of the words internal and external.
type PeerASN struct {
	Number   int64 `json:"-"` // 1 to MaxASN, unless Internal or External
	Internal bool  `json:"-"` // the node's AS: iBGP
	External bool  `json:"-"` // any other AS: eBGP
}

// How PeerASN.Internal and PeerASN.External are written.
const (
	internal = "internal"
	external = "external"
)

func (a PeerASN) String() string {
	switch {
	case a.Internal:
		return internal
	case a.External:
		return external
	}
	return strconv.FormatInt(a.Number, 10)
}

// MarshalJSON writes a number or a word.
func (a PeerASN) MarshalJSON() ([]byte, error) {
	if a.Internal || a.External {
		return json.Marshal(a.String())
	}
	return json.Marshal(a.Number)
}

// UnmarshalJSON reads a number or a word. intstr.IntOrString cannot hold all AS numbers:
// it has 32 bits with a sign.
func (a *PeerASN) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		if word != internal && word != external && string(b) != "null" {
			return fmt.Errorf("must be a number, without quotes, or %q or %q", internal, external)
		}
		*a = PeerASN{Internal: word == internal, External: word == external}
		return nil
	}
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("must be a number from 1 to %d, %q or %q", MaxASN, internal, external)
	}
	*a = PeerASN{Number: n}
	return nil
}
