package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// A metric is one that the product registers.
type metric struct{ name, kind, labels, help string }

// metrics finds every call that makes a metric. Most packages have closures such as counter
// that make several: those stand for one metric each time that they are called.
func (c code) metrics() (string, error) {
	var all []metric
	for dir, files := range c {
		for _, f := range files {
			s := scope{values: map[string]ast.Expr{}, closures: map[string]*ast.FuncLit{}}
			ast.Inspect(f, s.learn)
			found, err := s.find(f)
			if err != nil {
				return "", fmt.Errorf("%s: %w", dir, err)
			}
			all = append(all, found...)
		}
	}
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	rows := [][]string{{"metric", "type", "labels", "meaning"}}
	for _, m := range all {
		rows = append(rows, []string{"`" + m.name + "`", m.kind, m.labels, m.help})
	}
	return table(rows...), nil
}

// A scope has what names stand for in a file.
type scope struct {
	values   map[string]ast.Expr
	closures map[string]*ast.FuncLit
}

func (s scope) learn(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, v := range n.Values {
			s.values[n.Names[i].Name] = v
		}
	case *ast.AssignStmt:
		for i, v := range n.Rhs {
			if name, ok := n.Lhs[i].(*ast.Ident); ok && n.Tok == token.DEFINE {
				if l, ok := v.(*ast.FuncLit); ok {
					s.closures[name.Name] = l
				}
			}
		}
	}
	return true
}

// find returns the metrics that are made in a part of a file, outside of closures, and by
// calls of closures.
func (s scope) find(within ast.Node) (all []metric, err error) {
	ast.Inspect(within, func(n ast.Node) bool {
		if l, ok := n.(*ast.FuncLit); ok && l != within && s.isClosure(l) {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || err != nil {
			return err == nil
		}
		var found []metric
		switch f := call.Fun.(type) {
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "prometheus" && strings.HasPrefix(f.Sel.Name, "New") {
				found, err = s.made(strings.TrimPrefix(f.Sel.Name, "New"), call.Args)
			}
		case *ast.Ident:
			if l := s.closures[f.Name]; l != nil {
				found, err = s.bind(l, call.Args).find(l)
			}
		}
		all = append(all, found...)
		return err == nil
	})
	return all, err
}

func (s scope) isClosure(l *ast.FuncLit) bool {
	for _, c := range s.closures {
		if c == l {
			return true
		}
	}
	return false
}

// bind returns the scope of a closure that is called with these arguments.
func (s scope) bind(l *ast.FuncLit, args []ast.Expr) scope {
	inner := scope{values: map[string]ast.Expr{}, closures: s.closures}
	for name, v := range s.values {
		inner.values[name] = v
	}
	i := 0
	for _, field := range l.Type.Params.List {
		for _, name := range field.Names {
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				inner.values[name.Name] = &ast.CompositeLit{Elts: args[min(i, len(args)):]}
			} else if i < len(args) {
				inner.values[name.Name] = args[i]
			}
			i++
		}
	}
	return inner
}

// made is the metric of a call of prometheus.New….
func (s scope) made(what string, args []ast.Expr) ([]metric, error) {
	if what == "Registry" {
		return nil, nil
	}
	var m metric
	var err error
	if what == "Desc" {
		// The type is said where the value is; the suffix is Prometheus' convention.
		if m.name, err = s.text(args[0]); err == nil {
			m.help, err = s.text(args[1])
		}
		if m.kind = "gauge"; strings.HasSuffix(m.name, "_total") {
			m.kind = "counter"
		}
		m.labels = strings.Join(s.list(args[2]), ", ")
		return []metric{m}, err
	}
	options, ok := args[0].(*ast.CompositeLit)
	if !ok {
		return nil, fmt.Errorf("prometheus.New%s: its options are not written out", what)
	}
	fields := map[string]string{}
	for _, e := range options.Elts {
		kv := e.(*ast.KeyValueExpr)
		if name := kv.Key.(*ast.Ident).Name; name != "Buckets" {
			if fields[name], err = s.text(kv.Value); err != nil {
				return nil, fmt.Errorf("prometheus.New%s: %s: %w", what, name, err)
			}
		}
	}
	for _, p := range []string{fields["Namespace"], fields["Subsystem"], fields["Name"]} {
		m.name += "_" + p
	}
	m.name = strings.Trim(strings.ReplaceAll(m.name, "__", "_"), "_")
	m.help = fields["Help"]
	m.kind = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(what, "Vec"), "Func"))
	if strings.HasSuffix(what, "Vec") {
		m.labels = strings.Join(s.list(args[1]), ", ")
	}
	return []metric{m}, nil
}

// text is the value of an expression that is made of strings.
func (s scope) text(x ast.Expr) (string, error) {
	switch x := x.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(x.Value)
	case *ast.BinaryExpr:
		a, err := s.text(x.X)
		if err != nil {
			return "", err
		}
		b, err := s.text(x.Y)
		return a + b, err
	case *ast.Ident:
		if v := s.values[x.Name]; v != nil && v != ast.Expr(x) {
			return s.text(v)
		}
		return "", fmt.Errorf("the value of %s is not known", x.Name)
	}
	return "", fmt.Errorf("%T is no string", x)
}

// list are the strings in an expression that makes a slice.
func (s scope) list(x ast.Expr) (all []string) {
	switch x := x.(type) {
	case *ast.CompositeLit:
		for _, e := range x.Elts {
			all = append(all, s.list(e)...)
		}
	case *ast.CallExpr: // append
		for _, e := range x.Args {
			all = append(all, s.list(e)...)
		}
	case *ast.Ident:
		if v := s.values[x.Name]; v != nil {
			all = s.list(v)
		}
	case *ast.BasicLit:
		if t, err := s.text(x); err == nil {
			all = []string{t}
		}
	}
	return all
}
