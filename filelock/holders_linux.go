package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// initialPIDs is the initial PID namespace. The number is fixed in the kernel
// (PROC_PID_INIT_INO).
const initialPIDs = "pid:[4026531836]"

// findProcLocks returns how /proc/locks calls the file system of a file that
// this process has locked, which isn't always by the number that stat(2) has.
// It is empty if not all locks are there: those of processes in other PID
// namespaces are left out, except in the initial one.
func findProcLocks(f *file) string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || ns != initialPIDs {
		return ""
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	for l := range procLocks(string(text)) {
		if l.kind == "FLOCK" && l.pid == os.Getpid() && l.inode == strconv.FormatUint(f.id.ino, 10) {
			return l.dev
		}
	}
	return ""
}

func (b *Backend) observe(path string) ([]observation, error) {
	if b.procLocks == "" {
		return ask(path)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	var seen []observation
	for l := range procLocks(string(text)) {
		if l.kind == "FLOCK" && l.dev == b.procLocks && l.inode == fmt.Sprint(st.Ino) {
			seen = append(seen, observation{pid: l.pid, shared: l.access == "READ"})
		}
	}
	return seen, nil
}

// A procLock is one lock in /proc/locks; see proc_locks(5).
type procLock struct {
	kind, access string
	pid          int
	dev, inode   string
}

// procLocks parses lines like these, the second of which is a wait and no lock:
//
//	1: FLOCK  ADVISORY  WRITE 708 08:03:1310804 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 710 08:03:1310804 0 EOF
func procLocks(text string) func(yield func(procLock) bool) {
	return func(yield func(procLock) bool) {
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) < 6 || f[1] == "->" {
				continue
			}
			pid, err := strconv.Atoi(f[4])
			i := strings.LastIndexByte(f[5], ':')
			if err != nil || i < 0 {
				continue
			}
			if !yield(procLock{f[1], f[3], pid, f[5][:i], f[5][i+1:]}) {
				return
			}
		}
	}
}
