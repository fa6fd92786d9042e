package measure

import (
	"fmt"
	"path/filepath"
	"strings"
)

// A Page is a page of docs/benchmarks with further pages and figures.
type Page struct {
	Text    string
	Further []File
	Figures []File
}

// A File is a file of docs/benchmarks.
type File struct {
	Name    string
	Content []byte
}

// Files renders the page of a benchmark from its record alone: the page's file, further pages
// under the same head, and figures. present is CodeOf the working tree.
func (r Run) Files(name string, record Record, present string) ([]File, error) {
	p, err := r.Render(record.Results)
	if err != nil {
		return nil, err
	}
	head, err := record.Head(present)
	if err != nil {
		return nil, err
	}
	files := append([]File{{name + ".md", []byte(p.Text)}}, p.Further...)
	for i, f := range files {
		text, err := Under(head, string(f.Content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		files[i].Content = []byte(text)
	}
	return append(files, p.Figures...), nil
}

// Under puts a head between the title of a page and the rest.
func Under(head, text string) (string, error) {
	title, rest, ok := strings.Cut(strings.TrimSpace(text), "\n\n")
	if !ok || !strings.HasPrefix(title, "# ") {
		return "", fmt.Errorf("a page begins with %q: want a title", title)
	}
	return title + "\n\n" + strings.TrimSpace(head) + "\n\n" + rest + "\n", nil
}

// WriteFiles writes those files to a folder that differ.
func WriteFiles(folder string, files []File) error {
	for _, f := range files {
		if err := writeFile(filepath.Join(folder, f.Name), f.Content); err != nil {
			return err
		}
	}
	return nil
}
