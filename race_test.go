//go:build race

package fanfare

// raced: the race detector makes everything slower, and needs several times the memory.
const raced = true
