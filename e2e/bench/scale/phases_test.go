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
	c := exec.Command("sh", "-c", "ulimit -t 1; while :; do :; done") // the kernel ends it after a second of CPU time
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	after, err := clientsCPU()
	if err != nil {
		t.Fatal(err)
	}
	if theirs := c.ProcessState.UserTime(); theirs < time.Second/2 || after-before > theirs/2 {
		t.Errorf("%s in this process, %s in the program", after-before, theirs)
	}
}
