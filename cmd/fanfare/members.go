package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/membership"
)

// A membersFlags value holds the flags of the membership between speakers.
type membersFlags struct {
	keyFile string // a mounted Secret; the file may appear later
	port    uint16
	lease   time.Duration // between renewals
}

// add defines the flags. All speakers of a cluster need the same port and at least one key
// in common. A file with two keys makes it possible to replace the key without an interruption.
func (f *membersFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.keyFile, "members-key-file", "",
		"file with the keys of the membership protocol, one a line, the newest first; empty: speakers do not "+
			"communicate, and failed nodes are detected by their Ready condition only")
	set.Uint16Var(&f.port, "members-port", 7874,
		"UDP and TCP port of the membership protocol, on each node's InternalIP")
	set.DurationVar(&f.lease, "lease-interval", 5*time.Second,
		"how often the speaker renews the node's Lease while gossip does not reach all nodes, to show that it is "+
			"alive; otherwise once a minute; 0: never")
}

// check returns the first invalid flag. It does not read the key file: the speaker starts without
// it, and uses the keys when they appear.
func (f *membersFlags) check() error {
	// Every node must know the port in advance: the kernel cannot choose it.
	if f.port == 0 {
		return fmt.Errorf("--members-port %d: want a port, the same on all nodes", f.port)
	}
	// Short intervals would load the API server: 1,000 nodes write 200 Leases a second at 5s.
	if f.lease < 0 || f.lease > 0 && f.lease < time.Second {
		return fmt.Errorf("--lease-interval %s: want zero, or a second or more", f.lease)
	}
	return nil
}

// leaser returns the client that renews the node's Lease. It is nil for a folder, and if speakers
// do not communicate, because no other node reads the Lease then.
func (f *membersFlags) leaser(api *rest.Config) (*membership.LeaseClient, error) {
	if api == nil || f.keyFile == "" || f.lease == 0 {
		return nil, nil
	}
	return membership.NewLeaseClient(api, leaseNamespace)
}
