//go:build linux || freebsd

package main

import "syscall"

// dieWithParent has the kernel kill the child when we die without having ended
// it: the lock is free then. It is SIGKILL, since a child that takes its time
// would be at work beside the next holder.
func dieWithParent(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.Pdeathsig = syscall.SIGKILL
	return a
}
