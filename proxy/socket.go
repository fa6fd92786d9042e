package proxy

import "github.com/fanfare-lb/fanfare/internal/nfnl"

// A socket is a netlink socket of netfilter, with the requests of this package.
type socket struct{ *nfnl.Socket }

// dial opens a socket in the calling thread's namespace.
func dial() (*socket, error) {
	s, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}
