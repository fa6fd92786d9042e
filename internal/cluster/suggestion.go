package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// maxSuggested is the longest name, in bytes, that nearest compares: far more than any known one. It bounds
// what a name costs that a user chose.
const maxSuggested = 100

// DidYouMean proposes a name of known, as the end of a sentence. It is empty if none is similar.
func DidYouMean(name string, known []string) string {
	best := nearest(name, known)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// nearest returns the most similar name of known, or one that begins with name. It is empty if there is none:
// if more than a third of the letters, plus one, would have to change.
func nearest(name string, known []string) (best string) {
	if len(name) > maxSuggested {
		return ""
	}
	slices.Sort(known)
	lower, least := strings.ToLower(name), len(name)/3+2
	for _, k := range known {
		if d := distance(lower, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best != "" || len(name) < 3 {
		return best
	}
	if i := slices.IndexFunc(known, func(k string) bool {
		return strings.HasPrefix(strings.ToLower(k), lower)
	}); i >= 0 {
		return known[i] // passwordSecretRef for password
	}
	return ""
}

// distance is the Levenshtein distance of two words in bytes: insertions, deletions and replacements.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
