package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A bench is a run of this program.
type bench struct {
	in       measure.Inputs
	folder   string // of the pages; empty: none is written
	progress io.Writer
}

// all runs all benchmarks with their defaults. One that fails does not keep the others from
// running.
func (b bench) all(ctx context.Context) error {
	var errs []error
	for i, name := range names {
		fmt.Fprintf(b.progress, "bench: %s: %d of %d, %s%s\n", name, i+1, len(names), time.Now().Format(time.TimeOnly),
			b.expected(name))
		began := time.Now()
		err := b.one(ctx, name, nil)
		fmt.Fprintf(b.progress, "bench: %s: %s after %s\n", name, verdict(err), time.Since(began).Round(time.Second))
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// expected says how long a benchmark took the last time.
func (b bench) expected(name string) string {
	r, err := readRecord(b.folder, name)
	if err != nil || r.Took() == 0 {
		return ""
	}
	return fmt.Sprintf("; the last time it took %s", r.Took().Round(time.Second))
}

func verdict(err error) string {
	if err != nil {
		return "failed"
	}
	return "done"
}

// one measures, and writes the results and their page.
func (b bench) one(ctx context.Context, name string, args []string) error {
	flags := flag.NewFlagSet("bench "+name, flag.ExitOnError)
	benchmark := benchmarks[name](flags, &b.in)
	_ = flags.Parse(args) // ExitOnError
	results, err := benchmark.Measure(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	record, err := measure.NewRecord(ctx, name, b.in.Source, results)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	text, err := record.Bytes()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	files, err := benchmark.Files(name, record, record.Code)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Println(string(files[0].Content))
	if b.folder == "" {
		return nil
	}
	return measure.WriteFiles(b.folder, append(files, measure.File{Name: name + ".json", Content: text}))
}

// render writes the pages of those benchmarks that have results, or of the named ones.
func (b bench) render(wanted []string) error {
	must := len(wanted) > 0
	if !must {
		wanted = names
	}
	for _, name := range wanted {
		files, err := b.files(name)
		if errors.Is(err, fs.ErrNotExist) && !must {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := measure.WriteFiles(b.folder, files); err != nil {
			return err
		}
	}
	return nil
}

// files renders the page of a benchmark from its JSON and the present code.
func (b bench) files(name string) ([]measure.File, error) {
	flags, ok := benchmarks[name]
	if !ok {
		return nil, errors.New("there is no such benchmark")
	}
	record, err := readRecord(b.folder, name)
	if err != nil {
		return nil, err
	}
	present, err := measure.CodeOf(name, b.in.Source)
	if err != nil {
		return nil, err
	}
	return flags(flag.NewFlagSet(name, flag.ContinueOnError), &b.in).Files(name, record, present)
}

func readRecord(folder, name string) (measure.Record, error) {
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err != nil {
		return measure.Record{}, err
	}
	return measure.ReadRecord(text)
}
