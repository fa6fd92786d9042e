package bgp

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var updateTranscripts = flag.Bool("update", false, "write the node's lines in testdata/bfd again")

// A bfdReplay feeds what a router sent to a machine, and writes what the machine does.
type bfdReplay struct {
	t      *testing.T
	m      bfdMachine
	frozen bool
	inbox  []bfdPacket // that came in while it was frozen
	next   time.Time   // zero: never
	text   strings.Builder
	waits  time.Time // by when the router must have received a packet; zero if it does not wait
	starts uint64
}

// Transcripts in testdata/bfd begin with what happened. Lines of the router were captured; lines
// of the node are what this package sends to that router. In the router's packets "node" is the
// discriminator of the node's session, and "old" that of one before.
func TestBFDTranscripts(t *testing.T) {
	names, err := filepath.Glob("testdata/bfd/*.txt")
	must(t, err)
	if len(names) == 0 {
		t.Fatal("testdata/bfd has no transcripts")
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			must(t, err)
			r := &bfdReplay{t: t, frozen: true}
			for line := range strings.Lines(string(want)) {
				r.line(line)
			}
			if r.m.state != bfdUp {
				t.Errorf("at the end the node is in state %s", r.m.state)
			}
			got := r.text.String()
			if *updateTranscripts {
				must(t, os.WriteFile(name, []byte(got), 0o644))
			} else if got != string(want) {
				t.Errorf("the node does something else:\n%s", difference(got, string(want)))
			}
		})
	}
}

// difference is the first line that differs, with some before it.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("%s\ngot  %s\nwant %s", strings.Join(g[max(0, i-5):i], "\n"), g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

// line plays one line. It drops the packets and losses of the node, which it writes itself.
func (r *bfdReplay) line(line string) {
	fields := strings.Fields(line)
	if len(fields) < 3 || fields[0] == "#" {
		r.text.WriteString(line)
		return
	}
	seconds, err := strconv.ParseFloat(fields[0], 64)
	must(r.t, err)
	at := bfdStart.Add(time.Duration(seconds * float64(time.Second)).Round(time.Millisecond))
	if fields[1] == "node" && !slices.Contains([]string{"starts", "crashes", "freezes", "goes"}, fields[2]) {
		return
	}
	r.until(at)
	r.text.WriteString(line)
	if fields[1] == "router" {
		r.receive(at, r.parse(fields[2:]))
		return
	}
	switch r.waits = (time.Time{}); fields[2] {
	case "starts":
		p := r.parse(append([]string{"Down"}, fields[3:]...))
		r.starts++
		r.m = newBFDMachine(BFD{Transmit: p.transmit, Receive: p.receive, Multiplier: p.multiplier}, r.starts)
		r.frozen, r.inbox = false, nil
		r.act(at, r.m.timer)
	case "goes": // on
		r.frozen = false
		for _, p := range r.inbox {
			r.receive(at, p)
		}
		r.inbox = nil
		r.act(at, r.m.timer)
	default:
		r.frozen = true
	}
}

// until plays the machine's timers before at.
func (r *bfdReplay) until(at time.Time) {
	for !r.frozen && !r.next.IsZero() && r.next.Before(at) {
		r.act(r.next, r.m.timer)
	}
}

func (r *bfdReplay) receive(at time.Time, p bfdPacket) {
	if r.frozen {
		r.inbox = append(r.inbox, p)
		return
	}
	r.act(at, func(now time.Time) (bfdMachine, bfdResult) { return r.m.receive(now, p) })
	if r.waits = (time.Time{}); p.state == bfdUp && r.m.state == bfdUp && p.remote == r.m.local {
		// From now on the router waits no longer than this.
		r.waits = at.Add(time.Duration(r.m.conf.Multiplier) * max(r.m.packet(false).transmit, p.receive))
	}
}

func (r *bfdReplay) act(at time.Time, event func(now time.Time) (bfdMachine, bfdResult)) {
	if !r.waits.IsZero() && at.After(r.waits) {
		r.t.Errorf("%.3f: the router has waited for a packet since %.3f", at.Sub(bfdStart).Seconds(),
			r.waits.Sub(bfdStart).Seconds())
	}
	var result bfdResult
	r.m, result = event(at)
	r.next = result.next
	for _, p := range result.send {
		r.waits = time.Time{}
		text := strings.Replace(bfdSighting{bfdPacket: p}.String(), fmt.Sprintf("my=%x ", r.m.local), "my=node ", 1)
		fmt.Fprintf(&r.text, "%7.3f node   %s\n", at.Sub(bfdStart).Seconds(), text)
	}
	if result.lost != "" {
		fmt.Fprintf(&r.text, "%7.3f node   loses the router: %s\n", at.Sub(bfdStart).Seconds(), result.lost)
	}
}

// parse reads a packet as String writes it.
func (r *bfdReplay) parse(fields []string) (p bfdPacket) {
	p.state = bfdState(slices.Index([]string{"AdminDown", "Down", "Init", "Up"}, fields[0]))
	number := func(text string, base int) uint32 {
		n, err := strconv.ParseUint(text, base, 32)
		must(r.t, err)
		return uint32(n)
	}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "P":
			p.poll = true
		case "F":
			p.final = true
		case "diag":
			p.diagnostic = bfdDiagnostic(number(value, 10))
		case "mult":
			p.multiplier = uint8(number(value, 10))
		case "tx", "rx":
			d, err := time.ParseDuration(value)
			must(r.t, err)
			if key == "tx" {
				p.transmit = d
			} else {
				p.receive = d
			}
		case "my":
			p.local = number(value, 16)
		case "your":
			switch value {
			case "node":
				p.remote = r.m.local
			case "old":
				p.remote = r.m.local + 1
			default:
				p.remote = number(value, 16)
			}
		default:
			r.t.Fatalf("unknown field %q", field)
		}
	}
	return p
}
