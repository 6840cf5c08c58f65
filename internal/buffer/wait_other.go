//go:build !unix

package buffer

const canWait = false

func (s *Socket) attempt(uintptr) bool { return true }
