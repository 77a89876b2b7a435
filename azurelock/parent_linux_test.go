package azurelock

import "syscall"

// withParent has a child die with the tests, however they end.
func withParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
