package bgp

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// quickInputs builds what a quick run measures, and skips the test where the run cannot be.
func quickInputs(t *testing.T, programs ...string) measure.Inputs {
	t.Helper()
	if testing.Short() {
		t.Skip("programs and their routers take some seconds") // only in make test-short
	}
	if os.Geteuid() != 0 {
		nstest.Missing(t, "network namespaces need root")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			nstest.Missing(t, err.Error())
		}
	}
	return benchtest.Inputs(t)
}

// In a quick run both announcers reach all routers, and all routers receive each change.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	o := options{Inputs: quickInputs(t, "ip", "nft", bgpd, zebra)}
	o.quicken()
	r, _ := benchtest.Once(t, o.steps())
	for i, m := range announcerKinds {
		x := r.Results[i]
		if x.RSS == 0 || x.Peak < x.RSS {
			t.Errorf("%s: %d bytes, %d at most", m.name, x.RSS, x.Peak)
		}
		if m.silent {
			continue
		}
		if len(x.Done) != o.starts || len(x.Added) != o.changes || len(x.Removed) != o.changes ||
			len(x.Returned) != o.resets || x.Updates == 0 {
			t.Errorf("%s: %+v", m.name, x)
		}
	}
	if left, _ := filepath.Glob("/run/netns/" + worldPrefix.Name("*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A quick run measures both numbers of Services, from a folder and from a saved state.
func TestLoadMeasuresEverything(t *testing.T) {
	o := loadOptions{options: options{Inputs: quickInputs(t, "ip", "nft"), routers: 1}}
	o.quicken()
	r, _ := benchtest.Once(t, o.steps())
	for _, l := range r.Loads {
		if len(l.Spoke) != o.starts || len(l.Changed()) != r.Changes || len(l.FirstLoad) != o.starts ||
			l.FirstLoad[0] <= 0 || l.FirstLoad[0] > l.Done[0] || l.ChangeCPU <= 0 || l.RSS == 0 {
			t.Errorf("%d Services: %+v", l.Services, l)
		}
		s := l.Saved
		if len(s.Spoke) != o.starts || len(s.FirstLoad) != o.starts || len(s.CPU) != o.starts || s.Spoke[0] < r.Delay ||
			s.Done[0] < s.Spoke[0] || s.FirstLoad[0] <= 0 || s.CPU[0] <= 0 || s.RSS == 0 || s.Peak < s.RSS {
			t.Errorf("%d Services from the saved state, after %s: %+v", l.Services, r.Delay, s)
		}
	}
}

func TestLoadReportShowsNumbers(t *testing.T) {
	ms := func(n int) measure.Sample { return measure.Sample{time.Duration(n) * time.Millisecond} }
	one := func(services, n int) load {
		return load{
			Services: services, result: result{
				Spoke: ms(n), FirstLoad: ms(n + 1), Added: ms(n + 2), Removed: ms(n + 2),
				ChangeCPU: 2 * time.Duration(n) * time.Millisecond, RSS: int64(n) * 1e6,
			},
		}
	}
	r := loadReport{Starts: 3, Changes: 200, Loads: []load{one(10_000, 120), one(50_000, 220)}}
	before, err := r.render()
	if err != nil || strings.Contains(before, "saved state\n") {
		t.Errorf("error %v, of results without starts from the saved state:\n%s", err, before)
	}
	r.Delay = 500 * time.Millisecond
	for i := range r.Loads {
		r.Loads[i].Saved = &result{Spoke: ms(5120 + 100*i), Done: ms(5320 + 100*i), Peak: 130e6}
	}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| | 10,000 Services | 50,000 Services |",
		"| of this, decisions and the kernel | 121 ms / 121 ms | 221 ms / 221 ms |",
		"reached the router** | 122 ms / 122 ms | 222 ms / 222 ms |",
		"| the 99th percentile of that | 122 ms | 222 ms |", "with reading the file | 120 ms | 220 ms |",
		"| resident, at the end | 120 MB | 220 MB |", "It tries to connect for 500 ms,",
		"to the last route, with the wait** | 5.32 s / 5.32 s | 5.42 s / 5.42 s |", "| at most | 130 MB | 130 MB |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestReportShowsNumbers(t *testing.T) {
	ms := func(n int) measure.Sample { return measure.Sample{time.Duration(n) * time.Millisecond} }
	one := func(n int) result {
		return result{
			Spoke: ms(n), Done: ms(n + 1), Converged: ms(n + 2), Returned: ms(n + 3), Added: ms(n + 4),
			Removed: ms(n + 5), CPU: ms(n + 6),
			Updates: n, Bytes: 1000 * n, RSS: int64(n) * 1e6, Peak: int64(n+1) * 1e6,
		}
	}
	r := report{Routes: 1000, Routers: 4, Results: []result{one(120), one(220), one(100)}}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| from the first OPEN to the last of 1,000 routes at the last of 4 routers | 122 ms / 122 " +
			"ms | 222 ms / 222 ms |",
		"| **one more route: from the change to the last router** | 124 ms / 124 ms | 224 ms / 224 ms |",
		"| 120 in 120 kB | 220 in 220 kB |",
		"| resident, at the end | 120 MB | 220 MB |",
		"holds 100 MB (101 MB at most): the difference, 5000 bytes for each",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestReadUpdatePrefixes(t *testing.T) {
	for _, tt := range []struct {
		what, body      string
		reached, before string
		err             error
	}{
		{"End-of-RIB", "\x00\x00\x00\x00", "", "", nil},
		{"two routes", "\x00\x00\x00\x03abc\x20\x0a\x01\x02\x03\x18\x0a\x01\x02", "10.1.2.3/32 10.1.2.0/24", "", nil},
		{"one withdrawn", "\x00\x05\x20\x0a\x01\x02\x03\x00\x00", "", "10.1.2.3/32", nil},
		{"empty", "", "", "", errShort},
		{"truncated attributes", "\x00\x00\x00\x03ab", "", "", errShort},
		{"truncated prefix", "\x00\x00\x00\x00\x20\x0a\x01", "", "", errShort},
		{"a prefix of IPv6", "\x00\x00\x00\x00\x80\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "",
			"", errShort},
	} {
		reached, withdrawn, err := readUpdate([]byte(tt.body))
		if list(reached) != tt.reached || list(withdrawn) != tt.before || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v, %v", tt.what, reached, withdrawn, err)
		}
	}
}

func list(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}

// A router can read the messages that it writes, and rejects bytes without a BGP header.
func TestReadOwnMessages(t *testing.T) {
	stream := bytes.NewReader(append(open(netip.MustParseAddr("192.0.2.1")), message(msgKeepalive, nil)...))
	for _, want := range []byte{msgOpen, msgKeepalive} {
		if kind, _, err := readMessage(stream); kind != want || err != nil {
			t.Errorf("type %d, %v; want %d", kind, err, want)
		}
	}
	if _, _, err := readMessage(stream); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if _, _, err := readMessage(strings.NewReader(strings.Repeat("\x00", headerLen))); err == nil {
		t.Error("a message without a header was accepted")
	}
}
