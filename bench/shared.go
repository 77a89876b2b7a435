//go:build linux

package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedMemory is what the processes of one run have in common.
type sharedMemory struct {
	watch

	round    atomic.Int64 // of handOver: how many have been in
	waiting  atomic.Int64 // the round that somebody waits for
	released atomic.Int64 // when the last release began, by the monotonic clock
	ending   atomic.Bool
}

// A watch notices two holders at once, and tokens that don't rise. It costs the
// holder a few instructions on one cache line.
type watch struct {
	holder atomic.Uint64
	token  atomic.Uint64 // of the last holder

	violations atomic.Int64
	unordered  atomic.Int64
}

// enter is called by who holds the lock, with an id that nobody else has.
func (w *watch) enter(id uint64, c client) {
	if !w.holder.CompareAndSwap(0, id) {
		w.violations.Add(1)
	}
	if token, ok := c.token(); ok && token <= w.token.Swap(token) {
		w.unordered.Add(1)
	}
}

// leave is called before the release.
func (w *watch) leave(id uint64) {
	w.holder.CompareAndSwap(id, 0) // if it fails, enter has counted it
}

// share maps the memory in a file, which it makes if it isn't there.
func share(path string) (*sharedMemory, error) {
	const size = unsafe.Sizeof(sharedMemory{})
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*sharedMemory)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

func (m *sharedMemory) unmap() error {
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(m)), unsafe.Sizeof(*m)))
}

// monotonic reads a clock that all processes of the machine have in common.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
