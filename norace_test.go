//go:build !race

package fanfare

const raced = false
