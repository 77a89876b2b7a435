//go:build !linux

package azurelock

import "syscall"

func withParent() *syscall.SysProcAttr { return nil }
