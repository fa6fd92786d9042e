package lab

import (
	"strings"
	"unicode/utf8"
)

// widths are those of the columns step, action, observation and expected. They add up to
// 132 with the gaps, a common terminal width.
var widths = [...]int{24, 32, 46, 24}

// row returns a row of the table: a block of lines with each cell wrapped in its column.
func row(cells ...string) string {
	wrapped := make([][]string, len(cells))
	height := 0
	for i, c := range cells {
		wrapped[i] = wrap(c, widths[i])
		height = max(height, len(wrapped[i]))
	}
	var b strings.Builder
	for n := range height {
		var line strings.Builder
		for i, lines := range wrapped {
			cell := ""
			if n < len(lines) {
				cell = lines[n]
			}
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell))+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// wrap breaks a text into lines of at most width characters. A longer word gets its own
// line.
func wrap(text string, width int) (lines []string) {
	for _, paragraph := range strings.Split(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			switch {
			case line == "":
				line = word
			case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
				lines, line = append(lines, line), word
			default:
				line += " " + word
			}
		}
		lines = append(lines, line)
	}
	return lines
}
