package scale

import (
	"os/exec"
	"testing"
	"time"
)

// A program that this process ran and that has ended, as an API server that is restarted, is no client.
func TestClientsCPULeavesOutPrograms(t *testing.T) {
	before, err := clientsCPU()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c", "i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	after, err := clientsCPU()
	if err != nil {
		t.Fatal(err)
	}
	if theirs := c.ProcessState.UserTime(); theirs < 100*time.Millisecond || after-before > theirs/2 {
		t.Errorf("%s in this process, %s in the program", after-before, theirs)
	}
}
