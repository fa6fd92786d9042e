package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A content is what is in the image of one architecture.
type content struct {
	arch    string
	debian  []debianPackage
	modules []goModule
}

// The part of SPDX 2.3 that is used: https://spdx.github.io/spdx-spec/v2.3/.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Licenses      []spdxLicense      `json:"hasExtractedLicensingInfos"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name          string          `json:"name"`
		ID            string          `json:"SPDXID"`
		Version       string          `json:"versionInfo"`
		Download      string          `json:"downloadLocation"`
		FilesAnalyzed bool            `json:"filesAnalyzed"`
		Concluded     string          `json:"licenseConcluded"`
		Declared      string          `json:"licenseDeclared"`
		Copyright     string          `json:"copyrightText"`
		References    []spdxReference `json:"externalRefs"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	// spdxLicense is the text of a license without an identifier.
	spdxLicense struct {
		ID   string `json:"licenseId"`
		Text string `json:"extractedText"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const (
	source      = "https://github.com/fanfare-lb/fanfare"
	noAssertion = "NOASSERTION"
	document    = "SPDXRef-DOCUMENT"
)

// writeSBOM writes one document about the images of all architectures.
func writeSBOM(o options, contents []content) error {
	d := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: document, Name: "fanfare-" + o.version,
		Namespace: source + "/spdx/" + o.version,
		Creation:  spdxCreation{o.created.UTC().Format(time.RFC3339), []string{"Tool: fanfare-hack-image"}},
	}
	root := newPackage("fanfare", o.version, "Apache-2.0",
		"pkg:golang/"+strings.TrimPrefix(source, "https://")+"@"+o.version)
	d.add(document, "DESCRIBES", root)
	for _, c := range contents {
		for _, p := range c.debian {
			d.add(root.ID, "CONTAINS", newPackage(p.name, p.version, p.license.expression,
				fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.name, p.version, p.architecture)))
			d.refer(p.license)
		}
		for _, m := range c.modules {
			d.add(root.ID, "CONTAINS", newPackage(m.path, m.version, m.license, "pkg:golang/"+m.path+"@"+m.version))
		}
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.sbom, append(text, '\n'), 0o644)
}

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

func newPackage(name, version, license, purl string) spdxPackage {
	return spdxPackage{
		Name: name, ID: "SPDXRef-" + notInID.ReplaceAllString(purl, "-"), Version: version,
		Download: noAssertion, Concluded: noAssertion, Declared: license, Copyright: noAssertion,
		References: []spdxReference{{"PACKAGE-MANAGER", "purl", purl}},
	}
}

// add adds a package, unless it is in another architecture's image, too.
func (d *spdxDocument) add(by, how string, p spdxPackage) {
	if slices.ContainsFunc(d.Packages, func(q spdxPackage) bool { return q.ID == p.ID }) {
		return
	}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, spdxRelationship{by, how, p.ID})
}

// refer adds a license's text, unless a package of another architecture has it, too.
func (d *spdxDocument) refer(l license) {
	if l.text != "" && !slices.ContainsFunc(d.Licenses, func(m spdxLicense) bool { return m.ID == l.id }) {
		d.Licenses = append(d.Licenses, spdxLicense{l.id, l.text})
	}
}

// texts are words of a license's text, by its SPDX identifier. The first that matches counts, so
// that those with more conditions come first.
var texts = []struct {
	license string
	words   *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License\s+Version 2\.0`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,?\s+[vV]ersion 2\.0`)},
	{"BSD-3-Clause", regexp.MustCompile(`(?s)Redistribution and use in source and binary forms.*(endorse|Neither the name)`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software`)},
	{"MIT", regexp.MustCompile(`Permission is \w+ granted, free of charge`)},
}

// goLicense recognises the licenses in a module's top directory. A module that has several is
// under all of them.
func (t tree) goLicense(place string) string {
	found := map[string]bool{}
	for name, f := range t {
		if path.Dir(name) == place && !strings.HasPrefix(strings.ToUpper(path.Base(name)), "NOTICE") {
			found[licenseOf(string(f.content))] = true
		}
	}
	delete(found, "")
	return all(found)
}

func licenseOf(text string) string {
	for _, t := range texts {
		if t.words.MatchString(text) {
			return t.license
		}
	}
	return ""
}

// A license is an expression of SPDX. If it refers to a text that SPDX has no identifier for, id is
// that reference.
type license struct {
	expression, id, text string
}

// declared matches the names of licenses in a copyright file of Debian (DEP 5).
var declared = regexp.MustCompile(`(?m)^License: *(.*)$`)

// debianNames are SPDX identifiers of names in Debian's copyright files.
var debianNames = map[string]string{
	"GPL-2": "GPL-2.0-only", "GPL-2+": "GPL-2.0-or-later", "GPL-2.0+": "GPL-2.0-or-later", "GPL-3": "GPL-3.0-only",
	"GPL-3+": "GPL-3.0-or-later", "LGPL-2": "LGPL-2.0-only", "LGPL-2+": "LGPL-2.0-or-later",
	"LGPL-2.1": "LGPL-2.1-only", "LGPL-2.1+": "LGPL-2.1-or-later", "LGPL-3": "LGPL-3.0-only",
	"LGPL-3+": "LGPL-3.0-or-later", "BSD-3-clause": "BSD-3-Clause", "BSD-2-clause": "BSD-2-Clause", "Expat": "MIT",
	"MIT": "MIT", "ISC": "ISC", "Apache-2.0": "Apache-2.0", "Artistic": "Artistic-1.0-Perl",
	"Artistic-2.0": "Artistic-2.0", "Beerware": "Beerware", "CC-BY-SA-4.0": "CC-BY-SA-4.0", "X11": "X11",
}

// debianLicense translates the names in a package's copyright file. Files of a package differ in their
// licenses, so that all of them apply to the package. For a name that SPDX does not know, and for a file
// without a form, the file itself is the license.
func debianLicense(name, copyright string) license {
	l := license{id: "LicenseRef-Debian-" + notInID.ReplaceAllString(name, "-")}
	found := map[string]bool{}
	for _, m := range declared.FindAllStringSubmatch(copyright, -1) {
		for word := range strings.FieldsSeq(m[1]) {
			if word != "and" && word != "or" {
				found[cmp.Or(debianNames[word], l.id)] = true
			}
		}
	}
	if len(found) == 0 || found[l.id] {
		found[l.id], l.text = true, copyright
	}
	l.expression = all(found)
	return l
}

func all(licenses map[string]bool) string {
	var names []string
	for l := range licenses {
		names = append(names, l)
	}
	slices.Sort(names)
	return cmp.Or(strings.Join(names, " AND "), noAssertion)
}
