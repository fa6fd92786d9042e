package fanfare

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	used   = regexp.MustCompile(`(?m)^\s*(?:- )?uses:\s*(\S+?)(?:@(.*))?$`)
	pinned = regexp.MustCompile(`^[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

// Workflows have tokens that may write releases. A tag of an action can be moved to other code, its hash
// cannot; the comment says which version that is. Two hashes for one action would be a forgotten update.
func TestWorkflowsPinActions(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.y*ml")
	if err != nil || len(files) == 0 {
		t.Fatalf("workflows %v, %v", files, err)
	}
	versions := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range used.FindAllStringSubmatch(string(text), -1) {
			action, version := m[1], m[2]
			if !pinned.MatchString(version) {
				t.Errorf("%s: %s@%s: want the hash of a commit, and its version as a comment", name, action, version)
			}
			if other := versions[action]; other != "" && other != version {
				t.Errorf("%s: %s@%s: another workflow has %s", name, action, version, other)
			}
			versions[action] = version
		}
	}
	if len(versions) == 0 {
		t.Error("no action found")
	}
}
