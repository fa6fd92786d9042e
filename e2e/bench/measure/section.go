package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// WriteSection writes text into a document between the two comments that name its
// author, such as "make bench-kube", and leaves all else as it is: several programs
// write one document, in any order. A section that is not there yet comes last.
func WriteSection(path, author, text string) error {
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := replaceSection(string(have), author, text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(next), 0o644)
}

func replaceSection(document, author, text string) (string, error) {
	begin, end := "<!-- "+author+": begin -->\n", "<!-- "+author+": end -->\n"
	section := begin + "\n" + strings.TrimSpace(text) + "\n\n" + end
	before, rest, begins := strings.Cut(document, begin)
	_, after, ends := strings.Cut(rest, end)
	switch {
	case begins && ends:
		return before + section + after, nil
	case begins || strings.Contains(document, end):
		return "", fmt.Errorf("of the comments around the section of %s there is only one", author)
	case document == "":
		return section, nil
	default:
		return strings.TrimRight(document, "\n") + "\n\n" + section, nil
	}
}
