//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package filelock

import (
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// bootID tells one run of the system from the next. On the BSDs it changes when
// the clock is set, too, which costs some numbers.
var bootID = sync.OnceValue(func() string {
	if id, err := unix.Sysctl("kern.bootsessionuuid"); err == nil && id != "" {
		return id
	}
	t, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return randomID()
	}
	return strconv.FormatInt(int64(t.Sec), 10)
})
