package rundir

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

func TestAssignmentsSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	if held, err := Assignments(dir); held != nil || err != nil {
		t.Fatalf("a new speaker has %v, %v", held, err)
	}
	want := []cluster.Assignment{
		{Addr: netip.MustParseAddr("192.0.2.1"), Service: cluster.Name{Namespace: "shop", Name: "web"}, Pool: "lan"},
		{Addr: netip.MustParseAddr("2001:db8::1"), Service: cluster.Name{Namespace: "shop", Name: "web"}, Pool: "lan"},
	}
	m := New(dir)
	for range 2 {
		if err := m.SaveAssignments(&cluster.Snapshot{Assignments: cluster.AssignmentSet(want...)}); err != nil {
			t.Fatal(err)
		}
	}
	held, err := Assignments(dir)
	if err != nil || !slices.Equal(held, want) {
		t.Errorf("saved %v, %v; want %v", held, err, want)
	}
	if err := Cleanup(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An unchanged list is not written again: the file would wear out flash disks,
// and its time would not show when an address was last allocated.
func TestStateIsWrittenOnChange(t *testing.T) {
	m := New(t.TempDir())
	snap := &cluster.Snapshot{}
	if err := m.SaveAssignments(snap); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(assignmentsFile.in(m.path)); err != nil {
		t.Fatal(err)
	}
	if err := m.SaveAssignments(snap); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(assignmentsFile.in(m.path)); err == nil {
		t.Error("written again")
	}
}

func TestBrokenAssignmentsFileIsRenamed(t *testing.T) {
	dir := t.TempDir()
	path := assignmentsFile.in(dir)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if held, err := Assignments(dir); err == nil || held != nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, %v", held, err)
	}
	if held, err := Assignments(dir); err != nil || held != nil {
		t.Errorf("the second time: %v, %v", held, err)
	}
	if _, err := os.Stat(path + ".bad"); err != nil {
		t.Error(err)
	}
}

func TestRunDirectoryLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if Running(dir) {
		t.Error("a speaker runs where there is no directory")
	}
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !Running(dir) {
		t.Error("the speaker is not seen")
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "--run-dir") {
		t.Errorf("a second speaker got %v", err)
	}
	release()
	if Running(dir) {
		t.Error("the speaker is seen after its end")
	}
}

// The configuration is saved as soon as it changes. The error of a truncated file names it.
func TestConfigurationSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	path := configurationFile.in(dir)
	if c, err := Configuration(dir); c != nil || err != nil {
		t.Errorf("without a file: %v, %v", c, err)
	}
	m := New(dir)
	snap := &cluster.Snapshot{Configuration: &cluster.Configuration{}}
	snap.Configuration.Pools = append(snap.Configuration.Pools, clustertest.Pool("lan", "192.0.2.0/24"))
	for _, s := range []*cluster.Snapshot{snap, {}} { // what an earlier speaker saved has none
		if err := m.SaveConfiguration(s); err != nil {
			t.Fatal(err)
		}
		if c, err := Configuration(dir); err != nil || !reflect.DeepEqual(c, snap.Configuration) {
			t.Errorf("read %+v, %v", c, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"Pools":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Configuration(dir); c != nil || err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("half a file: %v, %v", c, err)
	}
}
