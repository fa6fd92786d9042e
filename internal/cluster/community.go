package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
)

// communitiesAnnotation of a Service: communities of its BGP routes, separated by commas. Only those
// in `allowedServiceCommunities` of the AddressPool are used, by default none.
const communitiesAnnotation = "fanfare.io/bgp-communities"

// Communities are labels of routes, by which routers select them.
type Communities struct {
	Standard []bgp.Community      // RFC 1997, sorted
	Large    []bgp.LargeCommunity // RFC 8092, sorted
}

// parseCommunities ignores invalid communities. consequence is part of their Problems.
func parseCommunities(field string, list []string, consequence string, p *Problems) *Communities {
	var c Communities
	for i, text := range list {
		if err := c.parse(text); err != nil {
			where := field
			if len(list) > 1 || !strings.HasPrefix(field, "metadata.") {
				where = fmt.Sprintf("%s[%d]", field, i)
			}
			p.Add(where, text, err.Error()+consequence)
		}
	}
	slices.Sort(c.Standard)
	slices.SortFunc(c.Large, bgp.LargeCommunity.Compare)
	c.Standard, c.Large = slices.Compact(c.Standard), slices.Compact(c.Large)
	return c.orNil()
}

// orNil returns nil for an empty set.
func (c *Communities) orNil() *Communities {
	if len(c.Standard)+len(c.Large) == 0 {
		return nil
	}
	return c
}

// parse adds the community in text.
func (c *Communities) parse(text string) error {
	if n, ok := bgp.CommunityNames[text]; ok {
		c.Standard = append(c.Standard, n)
		return nil
	}
	words := strings.Split(strings.TrimPrefix(text, "large:"), ":")
	large := len(words) == 3
	if len(words) != 2 && !large || !large && strings.HasPrefix(text, "large:") {
		return fmt.Errorf("must be two numbers such as 64500:1, three such as 64500:1:2, or one of %s",
			strings.Join(slices.Sorted(maps.Keys(bgp.CommunityNames)), ", "))
	}
	bits, digits := 16, 5
	if large {
		bits, digits = 32, 10
	}
	var numbers [3]uint32
	for i, word := range words {
		n, err := strconv.ParseUint(word, 10, bits)
		if err == nil && len(word) > digits {
			err = strconv.ErrSyntax
		}
		if err != nil {
			hint := ""
			if !large && i == 0 && errors.Is(err, strconv.ErrRange) {
				hint = "; a greater AS number needs a large community, as in 4200000000:1:2"
			}
			return fmt.Errorf("%q must be a number from 0 to %d%s", word, uint64(1)<<bits-1, hint)
		}
		numbers[i] = uint32(n)
	}
	switch standard := bgp.Community(numbers[0]<<16 | numbers[1]); {
	case !large && standard == bgp.LLGRStale:
		return errors.New("is LLGR_STALE, which is for routes of a router that is gone (RFC 9494); leave it out")
	case !large:
		c.Standard = append(c.Standard, standard)
	case numbers[0] == 1<<32-1:
		return fmt.Errorf("AS number %d is reserved (RFC 7300); use that of your own network", numbers[0])
	default:
		c.Large = append(c.Large, bgp.LargeCommunity{ASN: numbers[0], Local1: numbers[1], Local2: numbers[2]})
	}
	return nil
}

// maxServiceCommunities is how many communities a Service may have: as many as a pool can allow.
const maxServiceCommunities = 64

// parseServiceCommunities returns the valid communities of a Service: it is better to announce the
// Service without the others than not at all.
func parseServiceCommunities(o *corev1.Service, p *Problems) *Communities {
	v := o.Annotations[communitiesAnnotation]
	if strings.TrimSpace(v) == "" {
		return nil
	}
	list := strings.Split(v, ",")
	if len(list) > maxServiceCommunities {
		p.Add(annotation(communitiesAnnotation), v,
			fmt.Sprintf("has %d entries, and may have %d; all are left out", len(list), maxServiceCommunities))
		return nil
	}
	for i, word := range list {
		list[i] = strings.TrimSpace(word)
	}
	return parseCommunities(annotation(communitiesAnnotation), list, "; it is left out", p)
}
