package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

const root = "../.."

// tree is the input of the tests. Its packages belong to the root module.
type tree struct {
	packages map[string]*pkg
	files    []file
	texts    map[string]string // every text file by path
}

type pkg struct {
	doc     string
	imports map[string]string // path to the file that has it, tests left out
}

type file struct {
	path      string
	lines     int
	generated bool
	synctest  bool
	sleeps    bool // waits for a time
	types     map[string]size
	comments  []string
	calls     []string // of functions in packages and of methods, as written
	bare      []string // tests without a comment directly above them
}

// readTree reads the tree once for all tests. It opens each file itself, so that
// go test knows the inputs of a cached result.
func readTree(t *testing.T) *tree {
	t.Helper()
	tr, err := readOnce()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var readOnce = sync.OnceValues(func() (*tree, error) {
	tr := &tree{packages: map[string]*pkg{}, texts: map[string]string{}}
	modules := map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if base := path.Base(rel); rel == "python/.venv" || rel == "examples/kube-rs/target" || strings.HasPrefix(base, ".") && strings.HasSuffix(base, "_cache") || base == "__pycache__" {
				return filepath.SkipDir // see .gitignore
			}
			if rel == ".git" || rel == "bin" || rel == "dist" || rel == "data" ||
				(strings.HasPrefix(rel, "java/") || strings.HasPrefix(rel, "examples/java-")) && strings.HasSuffix(rel, "/target") { // see .gitignore
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && rel != "." {
				modules[rel] = true
			}
			return nil
		}
		if !d.Type().IsRegular() || rel == ".git" { // a file in a worktree
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if utf8.Valid(content) && path.Base(rel) != "go.sum" {
			tr.texts[rel] = string(content)
		}
		if path.Ext(rel) == ".go" && !strings.Contains(rel, "testdata/") {
			return tr.add(rel, content, modules)
		}
		return nil
	})
	return tr, err
})

func (tr *tree) add(rel string, content []byte, modules map[string]bool) error {
	syntax, err := parser.ParseFile(token.NewFileSet(), rel, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := file{path: rel, lines: bytes.Count(content, []byte{'\n'}), generated: ast.IsGenerated(syntax)}
	for _, c := range syntax.Comments {
		f.comments = append(f.comments, c.Text())
	}
	for _, d := range syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && strings.HasSuffix(rel, "_test.go") && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" &&
			fn.Doc.Text() == "" { // a directive alone is no comment
			f.bare = append(f.bare, fn.Name.Name)
		}
	}
	f.sleeps = sleeps(syntax)
	ast.Inspect(syntax, func(n ast.Node) bool {
		if name := selected(n); name != "" {
			f.calls = append(f.calls, name)
		}
		return true
	})
	if !f.generated {
		f.types = typesOf(syntax, path.Dir(rel))
	}

	dir := path.Dir(rel)
	p := tr.packages[dir]
	if p == nil {
		p = &pkg{imports: map[string]string{}}
	}
	if syntax.Doc != nil {
		p.doc += syntax.Doc.Text()
	}
	for _, spec := range syntax.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		f.synctest = f.synctest || imp == "testing/synctest"
		if !strings.HasSuffix(rel, "_test.go") {
			p.imports[imp] = rel
		}
	}
	tr.files = append(tr.files, f)
	for m := range modules {
		if below(m, dir) {
			return nil
		}
	}
	if !slices.ContainsFunc(generated, func(g string) bool { return below(g, dir) }) {
		tr.packages[dir] = p
	}
	return nil
}

// selected is the selector as it is written, such as time.Sleep, "" if it has another form.
func selected(n ast.Node) string {
	if sel, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok {
			return x.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

// sleeps reports that something waits for a time and for nothing else.
func sleeps(syntax *ast.File) (yes bool) {
	cases := map[ast.Node]bool{} // of a select, which waits for something else too
	ast.Inspect(syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			cases[n.Comm] = true
		case *ast.SelectorExpr:
			yes = yes || selected(n) == "time.Sleep"
		case *ast.ExprStmt:
			receive, _ := n.X.(*ast.UnaryExpr)
			if receive == nil || cases[n] {
				return true
			}
			call, ok := receive.X.(*ast.CallExpr)
			yes = yes || ok && selected(call.Fun) == "time.After"
		}
		return true
	})
	return yes
}

// typesOf counts the methods and fields that a file declares, by the names of the types with their package.
func typesOf(syntax *ast.File, pkg string) map[string]size {
	types := map[string]size{}
	if strings.HasSuffix(syntax.Name.Name, "_test") {
		pkg += "_test"
	}
	add := func(name string, n size) {
		name = pkg + "." + name
		types[name] = size{types[name].methods + n.methods, max(types[name].fields, n.fields)}
	}
	ast.Inspect(syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				of := n.Recv.List[0].Type
				if p, ok := of.(*ast.StarExpr); ok {
					of = p.X
				}
				switch generic := of.(type) {
				case *ast.IndexExpr:
					of = generic.X
				case *ast.IndexListExpr:
					of = generic.X
				}
				if name, ok := of.(*ast.Ident); ok {
					add(name.Name, size{methods: 1})
				}
			}
		case *ast.TypeSpec:
			switch of := n.Type.(type) {
			case *ast.StructType:
				add(n.Name.Name, size{fields: of.Fields.NumFields()})
			case *ast.InterfaceType:
				add(n.Name.Name, size{methods: of.Methods.NumFields()})
			}
		}
		return true
	})
	return types
}

func readRoot(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
