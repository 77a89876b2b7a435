package mysqllock

import "syscall"

// dieWithUs lets a server not outlive the tests.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
