package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// annotationDomains are the prefixes of annotations of Services that only Fanfare, or MetalLB, defines: any
// other annotation with one is a mistake, and what the Service asks for by it does not happen.
var annotationDomains = []string{"fanfare.io/", "metallb.io/", "metallb.universe.tf/"}

// ignoredAnnotations of a Service: written by MetalLB itself, to report. They have no effect.
var ignoredAnnotations = map[string]bool{
	"metallb.io/ip-allocated-from-pool":          true,
	"metallb.universe.tf/ip-allocated-from-pool": true,
}

// maxUnknownAnnotations is how many unknown annotations of a Service are named: it may have 20,000.
const maxUnknownAnnotations = 3

// unknownAnnotation reports whether an annotation is in one of annotationDomains, and means nothing.
func unknownAnnotation(key string) bool {
	return slices.ContainsFunc(annotationDomains, func(domain string) bool { return strings.HasPrefix(key, domain) }) &&
		!serviceAnnotations[key] && !ignoredAnnotations[key]
}

// hasOurAnnotation reports whether a Service asks for anything of Fanfare by an annotation, be it misspelt.
func hasOurAnnotation(o *corev1.Service) (first string, ok bool) {
	for key := range o.Annotations {
		ours := strings.HasPrefix(key, "fanfare.io/") || serviceAnnotations[key] && key != sourceRangesAnnotation
		if ours && (!ok || key < first) {
			first, ok = key, true
		}
	}
	return first, ok
}

// parseUnknownAnnotations reports unknown annotations, as warnings.
func parseUnknownAnnotations(o *corev1.Service, p *Problems) {
	var first []string // the first ones by name, sorted
	more := 0
	for key := range o.Annotations {
		if !unknownAnnotation(key) {
			continue
		}
		at, _ := slices.BinarySearch(first, key)
		if first = slices.Insert(first, at, key); len(first) > maxUnknownAnnotations {
			first, more = first[:maxUnknownAnnotations], more+1
		}
	}
	for i, key := range first {
		message := "there is no such annotation, so it has no effect" + suggestAnnotation(key)
		if i == len(first)-1 && more > 0 {
			message += fmt.Sprintf("; %d more", more)
		}
		*p = append(*p, Problem{
			Field: annotation(shorten(key, maxValue)), Message: message, Code: UnknownAnnotation, Warning: true,
		})
	}
}

// suggestAnnotation proposes an annotation of the same domain.
func suggestAnnotation(key string) string {
	domain, name, _ := strings.Cut(key, "/")
	var known []string
	for k := range maps.Keys(serviceAnnotations) {
		if d, n, _ := strings.Cut(k, "/"); d == domain {
			known = append(known, n)
		}
	}
	best := nearest(name, known)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s/%s?", domain, best)
}
