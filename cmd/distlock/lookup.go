package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// lookUp finds the program that a command name stands for, and fails with the
// exit code that a shell would give.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // PATH has "." in it: so be it
		return path, nil
	case errors.Is(err, exec.ErrNotFound) && !inPath(name), errors.Is(err, fs.ErrNotExist):
		return "", &exitError{exitNotFound, err}
	}
	return "", &exitError{exitCannotExecute, err}
}

// inPath reports whether PATH leads to a file of that name. LookPath doesn't
// tell one that can't be executed from none.
func inPath(name string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// startError is the error of a program that was found and yet couldn't be
// started.
func startError(path string, err error) error {
	code := exitCannotExecute
	if errors.Is(err, fs.ErrNotExist) { // removed meanwhile, or its interpreter is missing
		code = exitNotFound
	}
	return &exitError{code, &fs.PathError{Op: "start", Path: path, Err: err}}
}
