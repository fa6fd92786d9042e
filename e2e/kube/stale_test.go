package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// A speaker was down for hours and starts while the API server does not answer. Its saved
// state has addresses of pods that may belong to others by now: it opens no session and leaves
// the kernel's rules as they are, until the API server answers. With saved state that is
// seconds old, it announces.
func TestStaleSnapshotIsNotAnnounced(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		sessions := f.router("127.0.0.9:1790")
		f.run("controller")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")))
		must(t, f.Admin().Apply(t.Context(), peerOnPort))
		var vip string
		await(t, time.Minute, "an address", func() (err error) { vip, err = f.assigned("web"); return err })
		await(t, time.Minute, "forwarding", func() error { return f.forwards(vip) })
		inStep := filepath.Join(f.runDir(), "in-step.json")
		await(t, time.Minute, "the confirmed snapshot", func() error {
			saved, err := os.ReadFile(filepath.Join(f.runDir(), "cluster.json"))
			if err == nil && !(bytes.Contains(saved, []byte(vip)) && bytes.Contains(saved, []byte("1790"))) {
				return fmt.Errorf("it lacks %s or the router's port", vip)
			}
			_, age := os.Stat(inStep)
			return errors.Join(err, age)
		})
		await(t, time.Minute, "a session", sessions.opened)

		f.APIServer.Kill()
		speaker.kill()
		sessions.forget()
		speaker = f.speaker()
		await(t, time.Minute, "a session by the state of seconds ago", sessions.opened)

		speaker.kill()
		before := f.rules()
		f.age(inStep, 3*time.Hour)
		speaker = f.speaker()
		sessions.forget() // what the killed speaker sent
		await(t, time.Minute, "the refusal of the state of hours ago", func() error {
			if !speaker.logged("no snapshot that may be used") {
				return errors.New("not in the log")
			}
			return nil
		})
		if s, err := f.status(); err != nil || len(s.Addresses) != 0 {
			t.Errorf("status: %+v, %v", s, err)
		}
		if sessions.opened() == nil {
			t.Error("the speaker opened a session before the API server answered")
		}
		if after := f.rules(); after != before {
			t.Errorf("the rules were\n%s\nand are\n%s", before, after)
		}

		must(t, f.StartAPIServer(t.Context()))
		await(t, time.Minute, "a session by the API server's state", sessions.opened)
		await(t, time.Minute, "forwarding", func() error { return f.forwards(vip) })
	})
}

// peerOnPort is a router on a port that needs no right to listen.
const peerOnPort = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor9}
spec: {peerAddress: 127.0.0.9, peerPort: 1790, peerASN: 65000, myASN: 65001}
`

// age makes a confirmation older.
func (f *fanfare) age(file string, by time.Duration) {
	f.Helper()
	data, err := os.ReadFile(file)
	must(f.T, err)
	var at watch.Moment
	must(f.T, json.Unmarshal(data, &at))
	at.Uptime -= by
	data, err = json.Marshal(at)
	must(f.T, err)
	must(f.T, os.WriteFile(file, data, 0o600))
}

// rules are what the kernel has of Fanfare.
func (f *fanfare) rules() string {
	f.Helper()
	out, err := exec.CommandContext(f.Context(), "nft", "list", "table", "inet", "fanfare").CombinedOutput()
	if err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A router receives BGP messages, and answers none.
type router struct{ opens chan struct{} }

// router listens until the test ends.
func (f *fanfare) router(addr string) *router {
	f.Helper()
	l, err := net.Listen("tcp", addr)
	must(f.T, err)
	f.Cleanup(func() { l.Close() })
	r := &router{make(chan struct{}, 100)}
	go nstest.Accept(l, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 19)); err != nil { // an OPEN
			return
		}
		select {
		case r.opens <- struct{}{}:
		default:
		}
	})
	return r
}

// opened returns an error unless a session was opened since forget.
func (r *router) opened() error {
	select {
	case <-r.opens:
		return nil
	default:
		return fmt.Errorf("no OPEN message")
	}
}

func (r *router) forget() {
	for r.opened() == nil {
	}
}
