package filelock

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// examine finds out whether, and how well, locks work in the directory.
func (b *Backend) examine(allowUnsafe bool) error {
	d, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Without /proc there is nothing to know: then it is used like a network
	// mount, which works everywhere.
	m, known := mount{}, false
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", d.Fd()))
	if err == nil {
		table, err := os.ReadFile("/proc/self/mountinfo")
		if err == nil {
			m, known = findMount(string(table), mountID(string(info)))
		}
	}
	network, unsafe := m.judge()
	if unsafe != "" && !allowUnsafe {
		return fmt.Errorf("%s is on a %s mount, %s; use another directory, or, if all who use this one are on this host, set Options.AllowUnsafeMount (unsafe_mount=allow in the URL)",
			b.dir, m.kind, unsafe)
	}
	b.network = network || !known
	return b.probe()
}

// A mount is what /proc/self/mountinfo says about one.
type mount struct {
	kind    string // "ext4", "nfs4", "fuse.sshfs"
	options string // of the file system, comma-separated
}

// mountID returns the mount's ID from the text of /proc/self/fdinfo/N; see
// proc_pid_fdinfo(5).
func mountID(fdinfo string) string {
	for line := range strings.Lines(fdinfo) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// findMount looks up a mount in the text of /proc/self/mountinfo; see
// proc_pid_mountinfo(5).
func findMount(table, id string) (mount, bool) {
	if _, err := strconv.Atoi(id); err != nil {
		return mount{}, false
	}
	for line := range strings.Lines(table) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(after)
		if ok && strings.HasPrefix(before, id+" ") && len(fields) >= 3 {
			return mount{fields[0], fields[len(fields)-1]}, true
		}
	}
	return mount{}, false
}

// judge reports whether other hosts may use the file system too, and if so, why
// its locks can't be trusted to reach them.
func (m mount) judge() (network bool, unsafe string) {
	has := func(options ...string) bool {
		for o := range strings.SplitSeq(m.options, ",") {
			if slices.Contains(options, o) {
				return true
			}
		}
		return false
	}
	switch m.kind {
	case "nfs", "nfs4":
		if has("nolock", "local_lock=all", "local_lock=flock") {
			return true, "mounted so that locks stay within this host (nolock or local_lock)"
		}
		return true, ""
	case "cifs", "smb3":
		if has("nobrl") {
			return true, "mounted so that locks stay within this host (nobrl)"
		}
		return true, ""
	case "lustre":
		if has("localflock") {
			return true, "mounted so that locks stay within this host (localflock)"
		}
		return true, ""
	case "9p", "virtiofs", "vboxsf", "prl_fs":
		return true, "whose locks stay within this virtual machine"
	case "afs", "beegfs", "ceph", "gfs2", "glusterfs", "gpfs", "ocfs2", "orangefs", "pvfs2":
		return true, ""
	case "fuse.glusterfs", "fuse.ceph-fuse", "fuse.juicefs":
		return true, ""
	case "fuseblk", "fuse.fuse-overlayfs":
		return false, ""
	}
	if m.kind == "fuse" || strings.HasPrefix(m.kind, "fuse.") {
		return true, "whose locks may stay within this host"
	}
	return false, ""
}
