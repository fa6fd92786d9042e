package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A Record is the content of a benchmark's JSON file: its results, and what they are of.
type Record struct {
	Command string
	Commit  string // of the working tree, by git describe; empty outside of a clone
	Code    string // CodeOf the measured code
	Results json.RawMessage
}

// common are the fields that the results of all benchmarks have.
type common struct {
	Began   time.Time
	Took    time.Duration
	Machine Machine
}

// NewRecord describes results that a command has measured in a working tree.
func NewRecord(ctx context.Context, name, source string, results []byte) (Record, error) {
	code, err := CodeOf(name, source)
	return Record{Command: "make bench-" + name, Commit: Commit(ctx, source), Code: code, Results: results}, err
}

// Commit returns the commit of a working tree; empty without git or outside of a clone.
func Commit(ctx context.Context, source string) string {
	line, err := firstLine(ctx, "git", "-C", source, "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")
	if err != nil {
		return ""
	}
	return strings.Replace(line, "-dirty", " with changes", 1)
}

// numbers is an array of numbers in indented JSON.
var numbers = regexp.MustCompile(`\[[-+.eE\d,\s]*\]`)

// Bytes returns the record as JSON with a line for each value, and for each array of
// numbers, so that two versions can be compared.
func (r Record) Bytes() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, err
	}
	text = numbers.ReplaceAllFunc(text, func(array []byte) []byte {
		return []byte(strings.Join(strings.Fields(string(array)), ""))
	})
	return append(text, '\n'), nil
}

// ReadRecord is the inverse of Bytes.
func ReadRecord(text []byte) (r Record, err error) {
	err = json.Unmarshal(text, &r)
	return r, err
}

// Took returns how long the benchmark took; 0 if the results do not say it.
func (r Record) Took() time.Duration {
	var c common
	_ = json.Unmarshal(r.Results, &c)
	return c.Took
}

// Head returns the part of a page that says what was measured, when and on which machine,
// and whether the code has changed since. present is CodeOf the working tree.
func (r Record) Head(present string) (string, error) {
	var c common
	if err := json.Unmarshal(r.Results, &c); err != nil {
		return "", err
	}
	h := Heading{
		Command: r.Command, Date: c.Began.UTC().Format(time.DateOnly), Took: c.Took, Commit: r.Commit,
		Old: r.Code != present, Machine: c.Machine,
	}
	return h.String(), nil
}

// A Heading is the content of a page's head.
type Heading struct {
	Command, Date, Commit string
	Took                  time.Duration // 0: not said
	Old                   bool          // the code has changed since
	Machine               Machine
}

func (h Heading) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured by `%s` on %s", h.Command, h.Date)
	if h.Took > 0 {
		fmt.Fprintf(&b, ", in %s", minutes(h.Took))
	}
	if h.Commit != "" {
		fmt.Fprintf(&b, ", at commit %s", h.Commit)
	}
	state := "The measured code is unchanged since."
	if h.Old {
		state = "**Old: the measured code has changed since.**"
	}
	fmt.Fprintf(&b, ". %s\n\n| | |\n| --- | --- |\n", state)
	m := h.Machine
	fmt.Fprintf(&b, "| machine | %d cores for everything together: %s |\n", m.Cores, m.CPU)
	fmt.Fprintf(&b, "| system | %s, Linux %s; load when it began: %s |\n", m.System, m.Kernel, m.Load)
	fmt.Fprintf(&b, "| Fanfare | %s, %s |\n", m.Fanfare, m.Go)
	if beside := m.beside(); beside != "" {
		fmt.Fprintf(&b, "| beside it | %s |\n", beside)
	}
	return b.String()
}

// beside lists the versions of the other programs.
func (m Machine) beside() string {
	var all []string
	for _, v := range []struct {
		name, version string
	}{{"Kubernetes ", m.Kubernetes}, {"FRR ", m.FRR}, {"BIRD ", m.BIRD}, {"", m.NFT}, {"", m.IPTables}} {
		if v.version != "" {
			all = append(all, v.name+v.version)
		}
	}
	return strings.Join(all, ", ")
}
