package main

import (
	"strings"
	"testing"
)

func TestBroken(t *testing.T) {
	a, b, c, d := strings.Repeat("a", 50), strings.Repeat("b", 48), strings.Repeat("c", 50), strings.Repeat("d", 20)
	word := strings.Repeat("w", 29)
	words := strings.TrimSuffix(strings.Repeat(word+" ", 5), " ")
	for name, tt := range map[string]struct{ in, want string }{
		"arguments": {
			"f(" + a + ", " + b + ", " + c + ")",
			"f(" + a + ", " + b + ",\n\t\t" + c + ")",
		},
		"outermost": {
			"f(" + a + ", g(" + d + ", " + b + "))",
			"f(" + a + ",\n\t\tg(" + d + ", " + b + "))",
		},
		"operators": {
			"if " + a + " == 1 && " + b + " || " + c + " == 3 {\n\t}",
			"if " + a + " == 1 && " + b + " ||\n\t\t" + c + " == 3 {\n\t}",
		},
		"arguments before a comparison": {
			"if err := f(" + a + ", " + b + ", " + d + "); err != nil {\n\t}",
			"if err := f(" + a + ", " + b + ",\n\t\t" + d + "); err != nil {\n\t}",
		},
		"a function's body": {
			"f(" + a + ", func() { g(" + b + ", " + d + ") })",
			"f(" + a + ",\n\t\tfunc() { g(" + b + ", " + d + ") })",
		},
		"the body of a function that begins late": {
			"f(func() { g(" + a + ", " + c + ", 1) })",
			"f(func() {\n\t\tg(" + a + ", " + c + ", 1)\n\t})",
		},
		"a literal with fields": {
			"return T{x: " + a + ", y: " + b + ", z: " + d + "}",
			"return T{\n\t\tx: " + a + ", y: " + b + ",\n\t\tz: " + d + ",\n\t}",
		},
		"a literal without": {
			"return T{" + a + ", " + b + ", " + d + "}",
			"return T{" + a + ", " + b + ",\n\t\t" + d + "}",
		},
		"a string": {
			`f("` + words + `")`,
			`f("` + word + " " + word + " " + word + ` " +` + "\n\t\t" + `"` + word + " " + word + `")`,
		},
		"what fits on the next line": {
			"return " + a + " && " + b + " && " + d + " && " + d + " &&\n\t\t" + d + " && " + d,
			"return " + a + " && " + b + " &&\n\t\t" + d + " && " + d + " && " + d + " && " + d,
		},
		"short":                {"f(" + a + ", " + b + ")", "f(" + a + ", " + b + ")"},
		"what cannot be":       {"f" + a + b + c + "()", "f" + a + b + c + "()"},
		"both sides of a sign": {a + ", " + b + " = " + d + ", 1", a + ", " + b + " =\n\t\t" + d + ", 1"},
	} {
		in := "package p\n\nfunc p() {\n\t" + tt.in + "\n}\n"
		want := "package p\n\nfunc p() {\n\t" + tt.want + "\n}\n"
		if got, err := broken("x.go", []byte(in)); err != nil || string(got) != want {
			t.Errorf("%s: got\n%s%v\nwant\n%s", name, got, err, want)
		}
		if again, err := broken("x.go", []byte(want)); err != nil || string(again) != want {
			t.Errorf("%s: broken again:\n%s", name, again)
		}
	}
}

func TestBrokenSignature(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	in := "package p\n\nfunc f(" + a + " int, " + b + " int) (x int, err error) { return }\n"
	want := "package p\n\nfunc f(" + a + " int, " + b + " int) (x int, err error) {\n\treturn\n}\n"
	if got, err := broken("x.go", []byte(in)); err != nil || string(got) != want {
		t.Errorf("got\n%s%v\nwant\n%s", got, err, want)
	}
	in = "package p\n\nfunc f(" + a + " int, " + b + " int) (x, y int, first, second error) {\n}\n"
	want = "package p\n\nfunc f(" + a + " int,\n\t" + b + " int) (x, y int, first, second error) {\n}\n"
	if got, err := broken("x.go", []byte(in)); err != nil || string(got) != want {
		t.Errorf("got\n%s%v\nwant\n%s", got, err, want)
	}
}

func TestRaisedComment(t *testing.T) {
	words := strings.TrimSuffix(strings.Repeat("word ", 30), " ")
	in := "package p\n\nvar x int // " + words + "\n"
	want := "package p\n\n// " + words[:23*5-1] + "\n// " + words[23*5:] + "\nvar x int\n"
	if got, err := fixed("x.go", []byte(in)); err != nil || string(got) != want {
		t.Errorf("got\n%s%v\nwant\n%s", got, err, want)
	}
}
