//go:build unix

package drivertest

import (
	"os"
	"syscall"
)

const canStop = true

func stop(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
