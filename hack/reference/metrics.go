package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// metrics finds every call that makes a metric. Most packages have closures such as counter
// that make several: those stand for one metric each time that they are called. A call that
// cannot be read is an error, so that no metric is missing.
func (c code) metrics() (string, error) {
	var rows [][]string
	for dir, files := range c {
		for _, f := range files {
			s := scope{values: map[string]ast.Expr{}, closures: map[string]*ast.FuncLit{}}
			ast.Inspect(f, s.learn)
			found, err := s.find(f)
			if err != nil {
				return "", fmt.Errorf("%s: %w", dir, err)
			}
			rows = append(rows, found...)
		}
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	return table(append([][]string{{"metric", "type", "labels", "meaning"}}, rows...)...), nil
}

// A scope has what names stand for in a file. Names of other files are not known: metrics are made
// where their names are.
type scope struct {
	values   map[string]ast.Expr
	closures map[string]*ast.FuncLit
}

// learn records a node's names. Of variables only closures count: other values of variables may
// change before they are used.
func (s scope) learn(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, v := range n.Values {
			s.values[n.Names[i].Name] = v
		}
	case *ast.AssignStmt:
		for i, v := range n.Rhs {
			if l, ok := v.(*ast.FuncLit); ok && n.Tok == token.DEFINE {
				s.closures[n.Lhs[i].(*ast.Ident).Name] = l
			}
		}
	}
	return true
}

// find returns the metrics that are made in a part of a file, outside of closures, and by
// calls of closures.
func (s scope) find(within ast.Node) (rows [][]string, err error) {
	ast.Inspect(within, func(n ast.Node) bool {
		// The body of a closure has parameters for names: it is read where it is called.
		if l, ok := n.(*ast.FuncLit); ok && l != within && slices.Contains(slices.Collect(maps.Values(s.closures)), l) {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || err != nil {
			return err == nil
		}
		var found [][]string
		switch f := call.Fun.(type) {
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "prometheus" && strings.HasPrefix(f.Sel.Name, "New") &&
				f.Sel.Name != "NewRegistry" {
				found, err = s.made(strings.TrimPrefix(f.Sel.Name, "New"), call.Args)
			}
		case *ast.Ident:
			if l := s.closures[f.Name]; l != nil {
				found, err = s.bind(l, call.Args).find(l)
			}
		}
		rows = append(rows, found...)
		return err == nil
	})
	return rows, err
}

// bind returns the scope of a closure that is called with these arguments.
func (s scope) bind(l *ast.FuncLit, args []ast.Expr) scope {
	// Closures stay those of the file: one may call another.
	inner := scope{values: maps.Clone(s.values), closures: s.closures}
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

// made is the metric of a call of prometheus.New…. The name of the function says the type, except for
// NewDesc, whose value is made elsewhere.
func (s scope) made(what string, args []ast.Expr) ([][]string, error) {
	kind := strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(what, "Vec"), "Func"))
	fields := map[string]ast.Expr{}
	switch options := args[0].(type) {
	case *ast.CompositeLit:
		for _, e := range options.Elts {
			kv := e.(*ast.KeyValueExpr)
			fields[kv.Key.(*ast.Ident).Name] = kv.Value
		}
		if strings.HasSuffix(what, "Vec") {
			fields["labels"] = args[1]
		}
	default: // NewDesc
		fields["Name"], fields["Help"], fields["labels"] = args[0], args[1], args[2]
	}
	// Prometheus joins the parts that are not empty.
	var name []string
	for _, part := range []string{"Namespace", "Subsystem", "Name"} {
		text, err := s.strings(fields[part])
		if err != nil || part == "Name" && len(text) == 0 {
			return nil, fmt.Errorf("prometheus.New%s: cannot read %s: %w", what, part, err)
		}
		name = append(name, text...)
	}
	full := strings.Join(name, "_")
	if kind == "desc" { // its type is where the value is; the suffix is Prometheus' convention
		if kind = "gauge"; strings.HasSuffix(full, "_total") {
			kind = "counter"
		}
	}
	help, err := s.strings(fields["Help"])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	labels, err := s.strings(fields["labels"])
	return [][]string{{"`" + full + "`", kind, strings.Join(labels, ", "), strings.Join(help, "")}}, err
}

// strings are the values of an expression that is made of strings; none for nil. What it cannot read
// is an error: a row with a part of a name would look right.
func (s scope) strings(x ast.Expr) (all []string, err error) {
	var parts []ast.Expr
	switch x := x.(type) {
	case nil:
		return nil, nil
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return []string{text}, err
	case *ast.BinaryExpr:
		all, err = s.strings(&ast.CompositeLit{Elts: []ast.Expr{x.X, x.Y}})
		return []string{strings.Join(all, "")}, err
	case *ast.CompositeLit:
		parts = x.Elts
	case *ast.CallExpr: // append
		parts = x.Args
	case *ast.Ident:
		if x.Name == "nil" {
			return nil, nil
		}
		if s.values[x.Name] == nil {
			return nil, fmt.Errorf("the value of %s is not known", x.Name)
		}
		parts = []ast.Expr{s.values[x.Name]}
	default:
		return nil, fmt.Errorf("%T is no string", x)
	}
	for _, p := range parts {
		found, err := s.strings(p)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
