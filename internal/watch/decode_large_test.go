package watch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A file of several batches is what one goroutine would make of it: objects in their order,
// and the first mistake.
func TestDecodeLargeFile(t *testing.T) {
	const n = 5*batchSize + 1
	docs := make([]string, n)
	for i := range docs {
		docs[i] = service(fmt.Sprint("s", i), 1+i)
	}
	file := func() []byte { return []byte(strings.Join(docs, "---\n")) }
	got, err := decodeFile("all.yaml", file(), nil, nil)
	must(t, err)
	for i, d := range got {
		if want := fmt.Sprint("s", i); len(d.items) != 1 || d.items[0].obj == nil || d.items[0].key.Name.Name != want ||
			d.line != max(1, 5*i) {
			t.Fatalf("document %d in line %d: %v, want %s", i, d.line, d.items, want)
		}
	}
	for _, i := range []int{n - 1, 3*batchSize + 7, batchSize} {
		docs[i] = "a: [\n"
		_, err := decodeFile("all.yaml", file(), nil, nil)
		var syntax *syntaxError
		if !errors.As(err, &syntax) || syntax.line < 5*i || syntax.line > 5*i+3 {
			t.Errorf("mistake in document %d, in line %d: %v", i, 5*i, err)
		}
	}
}

// The n-th value of a JSON file is in its own line, and so is a mistake.
func TestSplitJSONLines(t *testing.T) {
	texts, err := splitJSON([]byte("{\n\"a\": 1}\n\n{} [\n]\n{}"))
	must(t, err)
	var lines []int
	for _, t := range texts {
		lines = append(lines, t.line)
	}
	if got := fmt.Sprint(lines); got != "[1 4 4 6]" {
		t.Errorf("lines %s", got)
	}
	for text, want := range map[string]string{
		"{}\n{\n]": "line 3: ", "{}\n{}\n{": "line 2: ", "{} \n\n x": "line 3: ",
	} {
		if _, err := splitJSON([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
