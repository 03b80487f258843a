package listener

import "net/netip"

// peer is an address that has connections.
type peer struct {
	addr        netip.Addr
	open        int
	first, last *conn // idle, the longest idle first
	at          int   // in the heap
	changed     uint64
}

// append puts a connection behind the idle ones.
func (p *peer) append(n *conn) {
	n.listed, n.before, n.after = true, p.last, nil
	if p.last != nil {
		p.last.after = n
	} else {
		p.first = n
	}
	p.last = n
}

// remove takes a connection from the idle ones, if it is there.
func (p *peer) remove(n *conn) {
	if !n.listed {
		return
	}
	if n.before != nil {
		n.before.after = n.after
	} else {
		p.first = n.after
	}
	if n.after != nil {
		n.after.before = n.before
	} else {
		p.last = n.before
	}
	n.listed, n.before, n.after = false, nil, nil
}

// peersByCount is a heap: the peer with the most connections first, of equal
// ones the one that has been so for longest.
type peersByCount []*peer

func (h peersByCount) above(a, b *peer) bool {
	return a.open > b.open || a.open == b.open && a.changed < b.changed
}
func (h peersByCount) Len() int           { return len(h) }
func (h peersByCount) Less(i, j int) bool { return h.above(h[i], h[j]) }
func (h peersByCount) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements [heap.Interface].
func (h *peersByCount) Push(x any) {
	p := x.(*peer)
	p.at = len(*h)
	*h = append(*h, p)
}

// Pop implements [heap.Interface].
func (h *peersByCount) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}
