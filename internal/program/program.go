// Package program tells the running program's name, for people's eyes.
package program

import (
	"os"
	"path/filepath"
)

// Name returns the name of the program without its folder, or "" if it has none:
// in a library that was loaded into another language's program, os.Args can be
// empty.
func Name() string {
	if len(os.Args) == 0 {
		return ""
	}
	return filepath.Base(os.Args[0])
}
