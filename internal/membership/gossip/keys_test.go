package gossip

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseKeys(t *testing.T) {
	const a, b = "first-key-of-some-length", "second-key-of-some-length"
	for _, tt := range []struct{ text, want string }{
		{a, a},
		{a + "\n", a},
		{"# new\n" + a + "\r\n\n  " + b + "  \n", a + " " + b},
		{a + "\n" + a, a},
		{"", "has no key in it"},
		{"# nothing\n", "has no key in it"},
		{a + "\nshort", "line 2: a key of 5 bytes; want 16 or more"},
		{strings.Repeat("x", 100_000), "too long"},
	} {
		keys, err := parseKeys([]byte(tt.text))
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "short") {
				t.Errorf("%.40q: %v, want %s", tt.text, err, tt.want)
			}
			continue
		}
		var want []key
		for word := range strings.FieldsSeq(tt.want) {
			want = append(want, sha256.Sum256([]byte(word)))
		}
		if fmt.Sprintf("%x", want) != fmt.Sprintf("%x", keys) {
			t.Errorf("%.40q: %x, want %x", tt.text, keys, want)
		}
	}
}

// Keys appear neither in logs nor in errors.
func TestKeysStayHidden(t *testing.T) {
	k := key(sha256.Sum256([]byte("secret")))
	for _, format := range []string{"%v", "%s", "%#v", "%+v"} {
		if got := fmt.Sprintf(format, []key{k}); !strings.Contains(got, "(hidden)") ||
			strings.Contains(got, fmt.Sprint(k[0], k[1])) {
			t.Errorf("%s: %s", format, got)
		}
	}
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := readKeys(path); !os.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(path, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readKeys(path); err == nil || strings.Contains(err.Error(), "hunter2") ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("a bad file: %v", err)
	}
}

// The key that encrypts on one node decrypts on all others, even if they read the file up to
// keyDelay earlier or later.
func TestKeyring(t *testing.T) {
	of := func(names string) (keys []key) {
		for _, name := range names {
			keys = append(keys, key{byte(name)})
		}
		return keys
	}
	for _, tt := range []struct{ name, story, want string }{
		// Each half of keyDelay: the keys of the file; the key that encrypts and, after a colon,
		// the keys that decrypt.
		{"one", "a a a", "a:a a:a a:a"},
		{"started beside an old one", "ba ba ba b b b b b", "a:ab a:ab b:ab b:ab b:ab b:ab b:ab b:b"},
		{"changed with the old one kept", "a ba ba ba b", "a:a a:ab a:ab b:ab b:ab"},
		{"replaced", "a b b b b b b", "a:a a:ab a:ab b:ab b:ab b:b b:b"},
		{"replaced twice", "a b c c c c c", "a:a a:ab a:abc a:abc c:abc c:bc c:c"},
		{"restored", "a b a a a a a", "a:a a:ab a:ab a:ab a:ab a:ab a:a"},
	} {
		var r keyring
		var got []string
		now := time.Unix(0, 0)
		for text := range strings.FieldsSeq(tt.story) {
			r.update(of(text), now)
			decrypt := ""
			for _, k := range r.accepted() {
				decrypt += string(k[0])
			}
			got = append(got, string(r.use[0])+":"+decrypt)
			now = now.Add(keyDelay / 2)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", tt.name, tt.story, strings.Join(got, " "), tt.want)
		}
	}
}
