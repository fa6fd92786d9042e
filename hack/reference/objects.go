package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// addObjects adds a part for each CustomResourceDefinition: its fields. The CRDs have been generated
// from the same comments as the Go types, and have the limits that the API server checks.
func addObjects(parts map[string]string, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s: %w", dir, cmp.Or(err, os.ErrNotExist))
	}
	for _, f := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		data, err := os.ReadFile(f)
		if err == nil {
			err = yaml.UnmarshalStrict(data, &crd)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		var b strings.Builder
		// There is one version, and its schema is what users write.
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		fmt.Fprintf(&b, "%s\n\nAPI version `%s/%s`, kind `%s`, scope %s.\n", sentence(schema.Description, ""),
			crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Kind, crd.Spec.Scope)
		for _, name := range []string{"spec", "status"} {
			if p, ok := schema.Properties[name]; ok {
				fmt.Fprintf(&b, "\n## %s\n\n%s\n%s\n", name, sentence(p.Description, name), rules(p))
				writeFields(&b, name, p)
			}
		}
		parts[crd.Spec.Names.Kind] = b.String()
	}
	return nil
}

// writeFields writes the fields of an object, and then those of the objects in it. Each has its full
// path, so that a search for it finds the line.
func writeFields(b *strings.Builder, path string, object apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		p, below := object.Properties[name], path+"."+name
		required := ""
		if slices.Contains(object.Required, name) {
			required = ", required"
		}
		fmt.Fprintf(b, "- `%s`: %s%s%s. %s%s\n", below, kind(p), required, limits(p), sentence(p.Description, name),
			rules(p))
		// The limits of a list and those of its items are different rules of the same field.
		if p.Type == "array" && p.Items != nil && p.Items.Schema != nil {
			p, below = *p.Items.Schema, below+"[]"
			if text := strings.TrimPrefix(limits(p), ",") + rules(p); text != "" && kind(p) != "object" {
				b.WriteString("  Each item:" + text + "\n")
			}
		}
		if name != "conditions" && kind(p) != "label selector" { // those of Kubernetes
			writeFields(b, below, p)
		}
	}
}

// kind is the type of a field, as a user would call it: OpenAPI has objects and strings only, which
// says nothing about selectors, times and maps.
func kind(p apiextensionsv1.JSONSchemaProps) string {
	switch {
	case p.Properties["matchLabels"].Type != "":
		return "label selector"
	case p.XIntOrString:
		return "integer or string"
	case p.Type == "array" && p.Items != nil && p.Items.Schema != nil:
		return "list of " + plural(kind(*p.Items.Schema))
	case p.Type == "object" && p.AdditionalProperties != nil:
		return "map of strings"
	case p.Format == "date-time":
		return "time"
	}
	return p.Type
}

// plural leaves a list of lists readable.
func plural(s string) string {
	if s == "list of strings" {
		return s
	}
	return s + "s"
}

// limits are what the API server checks, apart from rules in words.
func limits(p apiextensionsv1.JSONSchemaProps) string {
	var all []string
	if p.Default != nil {
		all = append(all, "default `"+strings.Trim(string(p.Default.Raw), `"`)+"`")
	}
	if len(p.Enum) > 0 {
		var values []string
		for _, v := range p.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		all = append(all, "one of "+strings.Join(values, ", "))
	}
	for _, l := range []struct {
		what   string
		length *int64
		value  *float64
	}{
		{"at least", nil, p.Minimum}, {"at most", nil, p.Maximum},
		{"length at least", p.MinLength, nil}, {"length at most", p.MaxLength, nil},
		{"items at least", p.MinItems, nil}, {"items at most", p.MaxItems, nil},
		{"entries at most", p.MaxProperties, nil},
	} {
		switch {
		case l.length != nil:
			all = append(all, fmt.Sprint(l.what, " ", *l.length))
		case l.value != nil:
			all = append(all, l.what+" "+strconv.FormatFloat(*l.value, 'f', -1, 64))
		}
	}
	// A rule says in words what its pattern says in symbols.
	if len(p.XValidations) == 0 && p.Pattern != "" {
		all = append(all, "matches `"+p.Pattern+"`")
	}
	if len(all) == 0 {
		return ""
	}
	return ", " + strings.Join(all, ", ")
}

// rules are what the API server checks, in the words of its answers. Several rules may share an
// answer, which is said once.
func rules(p apiextensionsv1.JSONSchemaProps) string {
	var all []string
	for _, v := range p.XValidations {
		rule := " Rule: " + strings.TrimRight(cmp.Or(v.Message, "`"+v.Rule+"`"), ".") + "."
		if !slices.Contains(all, rule) {
			all = append(all, rule)
		}
	}
	return strings.Join(all, "")
}

// sentence is a description on one line. A Go comment begins with the Go name, for which the
// field's name stands in YAML.
func sentence(description, field string) string {
	text := strings.Join(strings.Fields(description), " ")
	first, rest, _ := strings.Cut(text, " ")
	if word := strings.TrimRight(first, ",:"); field != "" && strings.EqualFold(word, field) &&
		unicode.IsUpper(rune(word[0])) {
		text = "`" + field + "`" + strings.TrimPrefix(first, word) + " " + rest
	}
	return text
}
