package sources

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v2"
)

// documents calls each with every document of a file that is not empty, as JSON,
// numbered from 1. It reads the YAML that kubectl reads, with the same parser, but as
// one stream: a line that looks like the start of a document is one only where YAML
// reports that, and nothing after it is skipped.
func documents(data []byte, each func(number int, raw []byte, err error)) {
	if gojson.Valid(data) { // not all of JSON is YAML: the escapes of surrogates are not
		if raw := bytes.TrimSpace(data); string(raw) != "null" {
			each(1, raw, nil)
		}
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.SetStrict(true) // a key twice is an error
	for number := 1; ; number++ {
		var tree any
		err := dec.Decode(&tree)
		if errors.Is(err, io.EOF) {
			return
		}
		if typeErr := (*yaml.TypeError)(nil); errors.As(err, &typeErr) {
			reported := typeErr.Errors
			if len(reported) > 5 {
				reported = append(reported[:5:5], fmt.Sprintf("and %d more", len(reported)-5))
			}
			each(number, nil, errors.New(strings.Join(reported, "; ")))
			continue
		}
		if err != nil {
			each(number, nil, err) // the start of the next one cannot be found
			return
		}
		if tree == nil {
			continue
		}
		raw, err := toJSON(tree)
		each(number, raw, err)
	}
}

// maxDocumentBytes bounds what a document may become when its aliases are
// written out.
const maxDocumentBytes = 4 * MaxFileBytes

func toJSON(tree any) ([]byte, error) {
	w := writer{left: maxDocumentBytes}
	tree, err := w.withStringKeys(tree)
	if err != nil {
		return nil, err
	}
	raw, err := gojson.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("has a value that JSON does not know: %w", err)
	}
	return raw, nil
}

type writer struct{ left int }

func (w *writer) spend(n int) error {
	if w.left -= n; w.left < 0 {
		return fmt.Errorf("is more than %d MiB with its aliases written out", maxDocumentBytes>>20)
	}
	return nil
}

// withStringKeys gives maps the keys that JSON has; a number or a bool is
// written out, as kubectl does.
func (w *writer) withStringKeys(tree any) (any, error) {
	const perNode = 8 // about what a small scalar and its punctuation take
	var err error
	switch node := tree.(type) {
	case map[any]any:
		out := make(map[string]any, len(node))
		for k, v := range node {
			if k == nil { // any other key that is no scalar the parser refuses
				return nil, errors.New("has a key that is null")
			}
			key := fmt.Sprint(k)
			if _, twice := out[key]; twice {
				return nil, fmt.Errorf("has the key %.64q twice in a map", key)
			}
			if err := w.spend(len(key)); err != nil {
				return nil, err
			}
			if out[key], err = w.withStringKeys(v); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		for i, v := range node {
			if node[i], err = w.withStringKeys(v); err != nil {
				return nil, err
			}
		}
	case string:
		return node, w.spend(len(node) + perNode)
	}
	return tree, w.spend(perNode)
}
