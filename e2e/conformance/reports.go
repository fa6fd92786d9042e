package conformance

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// An Outcome is the end of a test.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped" // by the test itself
)

// A Result is the result of a test in a set-up.
type Result struct {
	Setup, Test string
	Outcome     Outcome
	Message     string // of a failure, or why the test was skipped
	Took        time.Duration
	Measured    time.Time
	Fanfare     string // the version
	Code        string // measure.CodeOf the measured code
}

// A testCase is a test in JUnit's format.
type testCase struct {
	Name    string   `xml:"name,attr"`
	Seconds float64  `xml:"time,attr"`
	Failure *problem `xml:"failure"`
	Error   *problem `xml:"error"`
	Skipped *problem `xml:"skipped"`
}

type problem struct {
	Message string `xml:"message,attr"` // of skipped tests only
	Text    string `xml:",chardata"`
}

// message returns why a test failed, without the line that says where.
func (p problem) message() string {
	text, _, _ := strings.Cut(p.Text, "\nIn [")
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "[FAILED]"))
}

// readReports returns the results of a lane by the reports in a folder. The exit status of e2e.test does not
// say which test failed, and is 0 when it selects none: a test without a report has failed.
func readReports(dir string, lane Lane) ([]Result, error) {
	names, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	var cases []testCase
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var report struct {
			Suites []struct {
				Cases []testCase `xml:"testcase"`
			} `xml:"testsuite"`
		}
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, s := range report.Suites {
			cases = append(cases, s.Cases...)
		}
	}
	var results []Result
	for _, t := range lane.Tests {
		results = append(results, resultOf(t, cases))
	}
	return results, nil
}

func resultOf(t Test, cases []testCase) Result {
	r := Result{Test: t.Name, Outcome: Failed, Message: "e2e.test did not run it"}
	for _, c := range cases {
		// A test that skips itself has a reason. Without, it was not selected, or the run was interrupted.
		if strings.TrimPrefix(c.Name, "[It] ") != t.Name || c.Skipped != nil && c.Skipped.Message == "skipped" {
			continue
		}
		r.Took = time.Duration(c.Seconds * float64(time.Second)).Round(time.Second)
		switch {
		case c.Failure != nil:
			r.Message = c.Failure.message()
		case c.Error != nil:
			r.Message = c.Error.message()
		case c.Skipped != nil:
			r.Outcome, r.Message = Skipped, c.Skipped.Message
		default:
			r.Outcome, r.Message = Passed, ""
		}
	}
	return r
}
