package filelock

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// linger is how long the inotify instance outlives its last watch: closing one
// takes the kernel milliseconds, and the next waiter may come soon.
const linger = 100 * time.Millisecond

// A watcher tells waiters of closes and removals of the files that they watch.
// There is one in a process: users have a limited number of inotify instances.
// Its reader waits in the runtime's poller, so that it takes no thread either.
type watcher struct {
	mu      sync.Mutex
	file    *os.File // nil: not running
	fd      int
	watches map[int32]map[chan struct{}]struct{}
}

var closes = watcher{watches: make(map[int32]map[chan struct{}]struct{})}

// watch returns a channel that receives whenever the file is closed by
// somebody, removed or replaced. Without inotify it is silent and ok is false.
func watch(fd int) (c <-chan struct{}, stop func(), ok bool) {
	ring := make(chan struct{}, 1)
	wd, err := closes.add(fd, ring)
	if err != nil {
		return nil, func() {}, false
	}
	return ring, func() { closes.remove(wd, ring) }, true
}

func (w *watcher) add(fd int, ring chan struct{}) (int32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return 0, err
		}
		w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
		go w.read(w.file)
	}
	// By way of the descriptor it is this very file, whatever has its name now.
	// The system gives the same wd for the same file.
	d, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd),
		unix.IN_CLOSE|unix.IN_ATTRIB|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	if err != nil {
		w.restIfIdle()
		return 0, err
	}
	wd := int32(d)
	if w.watches[wd] == nil {
		w.watches[wd] = make(map[chan struct{}]struct{})
	}
	w.watches[wd][ring] = struct{}{}
	_ = w.file.SetReadDeadline(time.Time{})
	return wd, nil
}

func (w *watcher) remove(wd int32, ring chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watches[wd], ring)
	if len(w.watches[wd]) == 0 {
		delete(w.watches, wd)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
	}
	w.restIfIdle()
}

func (w *watcher) restIfIdle() {
	if len(w.watches) == 0 {
		_ = w.file.SetReadDeadline(time.Now().Add(linger))
	}
}

// read hands out events until there has been nobody to hand them to for a
// while.
func (w *watcher) read(f *os.File) {
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := f.Read(buf)
		w.mu.Lock()
		if err != nil && len(w.watches) == 0 {
			w.file = nil
			w.mu.Unlock()
			f.Close()
			return
		}
		for b := buf[:max(n, 0)]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			name := int(binary.NativeEndian.Uint32(b[12:]))
			b = b[min(unix.SizeofInotifyEvent+name, len(b)):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				for wd := range w.watches {
					w.wake(wd)
				}
			} else {
				w.wake(wd)
			}
		}
		w.mu.Unlock()
	}
}

func (w *watcher) wake(wd int32) {
	for ring := range w.watches[wd] {
		select {
		case ring <- struct{}{}:
		default: // one is waiting for it already
		}
	}
}
