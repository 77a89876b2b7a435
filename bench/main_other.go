//go:build !linux

// Command bench runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: it runs on Linux only, as it shares memory and a clock between processes and reads /proc")
	os.Exit(1)
}
