package route

import (
	"hash/maphash"
	"maps"
)

// shardCount makes a change of one among 100,000 copy about a hundred of them.
const shardCount = 1024

var seed = maphash.MakeSeed()

// shards is a map in pieces. A clone shares all pieces with its original and copies one when it
// first writes to it.
type shards[K comparable, V any] struct {
	maps [shardCount]map[K]V
	n    int
	// mine marks the pieces that were copied since the clone; nil once sealed.
	mine *[shardCount]bool
}

func newShards[K comparable, V any]() *shards[K, V] { return &shards[K, V]{} }

func shardOf[K comparable](k K) int { return int(maphash.Comparable(seed, k) % shardCount) }

func (s *shards[K, V]) get(k K) V { return s.maps[shardOf(k)][k] }

func (s *shards[K, V]) all(yield func(V) bool) {
	for _, m := range s.maps {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

func (s *shards[K, V]) clone() *shards[K, V] {
	return &shards[K, V]{maps: s.maps, n: s.n, mine: new([shardCount]bool)}
}

// seal ends the time in which a clone may be written to.
func (s *shards[K, V]) seal() { s.mine = nil }

func (s *shards[K, V]) own(k K) map[K]V {
	i := shardOf(k)
	if !s.mine[i] {
		s.mine[i] = true
		if s.maps[i] == nil {
			s.maps[i] = map[K]V{}
		} else {
			s.maps[i] = maps.Clone(s.maps[i])
		}
	}
	return s.maps[i]
}

func (s *shards[K, V]) set(k K, v V) {
	m := s.own(k)
	if _, ok := m[k]; !ok {
		s.n++
	}
	m[k] = v
}

func (s *shards[K, V]) delete(k K) {
	if _, ok := s.maps[shardOf(k)][k]; ok {
		delete(s.own(k), k)
		s.n--
	}
}
