//go:build !unix

package drivertest

import (
	"errors"
	"os"
)

const canStop = false

func stop(*os.Process) error   { return errors.ErrUnsupported }
func resume(*os.Process) error { return errors.ErrUnsupported }
