//go:build unix && !netbsd

package main

import "golang.org/x/sys/unix"

const waitContinued = unix.WCONTINUED
