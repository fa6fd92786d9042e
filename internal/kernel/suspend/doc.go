// Package suspend detects that this process did not run for a while: it was stopped by a
// signal or starved, or the machine was suspended. Other nodes may have taken it for dead
// meanwhile.
package suspend
