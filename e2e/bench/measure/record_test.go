package measure

import (
	"strings"
	"testing"
	"time"
)

func record(t *testing.T) Record {
	t.Helper()
	return Record{
		Command: "make bench-x", Commit: "0123456789", Code: "present",
		Results: []byte(`{"Began":"2026-11-25T10:00:00Z","Took":61000000000,"Machine":{"Cores":2,"CPU":"a CPU","Fanfare":"v1","FRR":"8","NFT":"nft 1"},"Each":[1,2.5,-3e+06],"Words":["a, b"]}`),
	}
}

// The JSON has a line for each array of numbers, and reads back as the same record.
func TestRecordBytes(t *testing.T) {
	text, err := record(t).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Command": "make bench-x"`, "\n  \"Each\": [1,2.5,-3e+06],\n", "\n   \"a, b\"\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	again, err := ReadRecord(text)
	if err != nil || again.Code != "present" || again.Took() != 61*time.Second {
		t.Errorf("%+v, %v", again, err)
	}
	second, err := again.Bytes()
	if err != nil || string(second) != string(text) {
		t.Errorf("%s, %v", second, err)
	}
}

// The head says the command, date, commit and versions, and whether the code has changed.
func TestHead(t *testing.T) {
	for present, want := range map[string]string{
		"present": "Measured by `make bench-x` on 2026-11-25, in 2 minutes, at commit 0123456789. The measured code " +
			"is unchanged since.\n",
		"other": "Measured by `make bench-x` on 2026-11-25, in 2 minutes, at commit 0123456789. **Old: the " +
			"measured code has changed since.**\n",
	} {
		got, err := record(t).Head(present)
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
		if want := "| beside it | FRR 8, nft 1 |\n"; !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// The head follows the title. A page without a title is an error.
func TestUnder(t *testing.T) {
	if got, err := Under("head\n", "# Title\n\nText.\n"); got != "# Title\n\nhead\n\nText.\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "# Title", "Text.\n\nMore."} {
		if got, err := Under("head", bad); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
