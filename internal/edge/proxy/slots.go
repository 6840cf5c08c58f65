package proxy

// maxShared is how many requests of different visitor connections share an HTTP/2 connection to
// an origin: it is a multiplexer over one stream, where one stalled answer can hold up others.
const maxShared = 8

// slots are the HTTP/2 connections of one key, by the number that is part of their name.
type slots map[int]*slot

// slot is one such connection while requests use it.
type slot struct {
	requests int
	// visitor is the one whose requests these are; 0 once they are of several.
	visitor uint64
}

// takeSlot finds a connection for a request of a visitor connection (0 = unknown): one that
// serves this visitor only, else one with room, else a new one. The number is the lowest that
// fits, so that idle connections are used again.
func (p *pool) takeSlot(key string, visitor uint64) (n int, back func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ss := p.slots[key]
	if ss == nil {
		ss = slots{}
		p.slots[key] = ss
	}
	n = ss.find(visitor)
	s := ss[n]
	switch {
	case s == nil:
		s = &slot{visitor: visitor}
		ss[n] = s
	case s.visitor != visitor:
		s.visitor = 0
	}
	s.requests++
	return n, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.requests--; s.requests == 0 {
			delete(ss, n)
		}
		if len(ss) == 0 {
			delete(p.slots, key)
		}
	}
}

func (ss slots) find(visitor uint64) int {
	room, free := -1, 0
	for n := 0; n < len(ss)+1; n++ {
		// Numbers may have gaps; the loop sees enough of them to find a free one.
		if ss[n] == nil {
			free = n
			break
		}
	}
	for n, s := range ss {
		if visitor != 0 && s.visitor == visitor {
			return n
		}
		if s.requests < maxShared && (room < 0 || n < room) {
			room = n
		}
	}
	if room >= 0 {
		return room
	}
	return free
}
