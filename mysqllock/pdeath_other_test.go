//go:build unix && !linux

package mysqllock

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
