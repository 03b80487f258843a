package listener

import "net/netip"

// peer is an address that has connections.
type peer struct {
	addr       netip.Addr
	open       int
	idle, busy connList // each of its connections is in one of them
	at         int      // in the heap
	changed    uint64
}

// connList is a list of connections, the longest idle or busy first.
type connList struct{ first, last *conn }

// append puts a connection at the end.
func (l *connList) append(n *conn) {
	n.in, n.before, n.after = l, l.last, nil
	if l.last != nil {
		l.last.after = n
	} else {
		l.first = n
	}
	l.last = n
}

// leave removes the connection from its list, if it is in one.
func (n *conn) leave() {
	l := n.in
	if l == nil {
		return
	}
	if n.before != nil {
		n.before.after = n.after
	} else {
		l.first = n.after
	}
	if n.after != nil {
		n.after.before = n.before
	} else {
		l.last = n.before
	}
	n.in, n.before, n.after = nil, nil, nil
}

// peersByCount is a heap: the peer with the most connections first, and of equal
// ones the peer whose number changed first.
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
