package tdstest_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if goroutines are left when all tests are through.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := leftGoroutines(); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines are left after the tests:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

func leftGoroutines() string {
	var left []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); runtime.Gosched() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = left[:0]
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if i > 0 && (strings.Contains(stack, "/tdstest.") || strings.Contains(stack, "go-mssqldb")) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}
