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
	"time"

	"golang.org/x/sys/unix"
)

// machine returns a line on the processor, the memory, the system and Go, and on how
// busy it is.
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
	size := ""
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		size = fmt.Sprintf(", %.0f GiB of memory", float64(info.Totalram)*float64(info.Unit)/(1<<30))
	}
	return fmt.Sprintf("%s, %d cores%s; %s; %s%s", model, runtime.NumCPU(), size, kernel, runtime.Version(), load)
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

// flushTime returns how long it takes, in the middle of several times, until a few
// bytes that were written to a file in dir are on its disk.
func flushTime(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var all []float64
	for range 50 {
		start := time.Now()
		if _, err := f.Write(make([]byte, 512)); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(start)))
	}
	return median(all), nil
}

// connections counts the connections that the server at a port of this host has.
func connections(port uint16) (int, error) {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return -1, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		// Its number, the address and port here, those there, and the state: 01 is
		// established. All are in hexadecimal.
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "01" {
			n++
		}
	}
	return n, nil
}

// fileSystem returns the kind of the one that has dir.
func fileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return ""
	}
	kinds := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs"}
	return kinds[s.Type]
}
