//go:build unix && !linux && !freebsd

package main

import "syscall"

// dieWithParent does nothing: this system has no such thing.
func dieWithParent(a *syscall.SysProcAttr) *syscall.SysProcAttr { return a }
