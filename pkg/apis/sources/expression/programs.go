package expression

import (
	"container/list"
	"sync"

	"github.com/google/cel-go/cel"
)

// MaxBytes bounds what the compiled expressions of all sources take together: one takes up
// to a hundred kilobytes, and an author may write many. Beyond MaxBytes the least
// recently used are dropped, and compiled again at their next use.
const MaxBytes = 12 << 20

// What a compiled expression takes at most beside its text, as measured: by itself, for each of its
// nodes, and for each instruction of its patterns.
const (
	bytesOfProgram     = 12 << 10
	bytesOfNode        = 192
	bytesOfInstruction = 64
)

// compiled are the programs that were used lately.
var compiled = cache{most: MaxBytes, of: map[identity]*list.Element{}}

// identity is what tells programs apart: the wanted type is only checked.
type identity struct{ variable, text string }

// cache holds programs of so many bytes at most. It is safe for concurrent use.
type cache struct {
	most int64

	sync.Mutex
	of    map[identity]*list.Element // of *program
	order list.List                  // the program that was used last is first
	bytes int64
}

type program struct {
	cel.Program
	identity
	yields *cel.Type
	bytes  int64
}

// get returns the program of the identity, which is compiled if it is not there.
func (c *cache) get(id identity, compile func() (*program, error)) (cel.Program, error) {
	c.Lock()
	if e := c.of[id]; e != nil {
		c.order.MoveToFront(e)
		c.Unlock()
		return e.Value.(*program).Program, nil
	}
	c.Unlock()
	made, err := compile() // perhaps twice at once: the later one stays
	if err != nil {
		return nil, err
	}
	c.Lock()
	defer c.Unlock()
	c.remove(c.of[id])
	c.of[id] = c.order.PushFront(made)
	c.bytes += made.bytes
	for c.bytes > c.most {
		c.remove(c.order.Back())
	}
	return made.Program, nil
}

// remove takes a program out, if it is there. The caller holds the lock.
func (c *cache) remove(e *list.Element) {
	if e == nil {
		return
	}
	gone := c.order.Remove(e).(*program)
	delete(c.of, gone.identity)
	c.bytes -= gone.bytes
}
