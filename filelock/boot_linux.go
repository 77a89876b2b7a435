package filelock

import (
	"os"
	"strings"
	"sync"
)

// bootID tells one run of the system from the next.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return randomID()
	}
	return strings.TrimSpace(string(b))
})
