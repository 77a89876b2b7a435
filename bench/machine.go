//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine returns a line on the processor, the system and Go, and on how busy it
// is.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.Join(strings.Fields(value), " ")
				break
			}
		}
	}
	var u unix.Utsname
	kernel := runtime.GOOS
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + version(unix.ByteSliceToString(u.Release[:])) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	load := ""
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = "; load average before the run " + strings.Fields(string(b))[0]
	}
	return fmt.Sprintf("%s, %d cores; %s; %s%s", model, runtime.NumCPU(), kernel, runtime.Version(), load)
}

// version returns what is a number in the release of a kernel, without what those
// who built it added.
func version(release string) string {
	number, _, _ := strings.Cut(release, "-")
	return number
}

// module returns the version of a module that this program is built with.
func module(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return ""
}

// resident returns how many bytes of memory a process has.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1, err
	}
	_, after, _ := bytes.Cut(b, []byte("VmRSS:"))
	n, _, _ := bytes.Cut(after, []byte("kB"))
	kib, err := strconv.ParseInt(string(bytes.TrimSpace(n)), 10, 64)
	return kib * 1024, err
}
