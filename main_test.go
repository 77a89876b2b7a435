package distlock_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
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

// leftGoroutines returns the stacks of goroutines that are still in this module
// after they had time to end.
func leftGoroutines() string {
	var left []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = left[:0]
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if i > 0 && strings.Contains(stack, "distlock-go/distlock") { // the first one is this
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// What an application links is the standard library, golang.org/x/sys and this
// module; and nothing that belongs into tests.
func TestDependencies(t *testing.T) {
	const module = "github.com/distlock-go/distlock"
	list := func(args ...string) []string {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Env = append(os.Environ(), "GOWORK=off")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list %v: %v\n%s", args, err, stderr.String())
		}
		return strings.Fields(string(out))
	}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		t.Setenv("GOOS", goos)
		t.Setenv("CGO_ENABLED", "0")
		standard := list("-deps", "-f", "{{if .Standard}}{{.ImportPath}}{{end}}", "./...")
		for _, line := range list("-f", "{{.ImportPath}}{{range .Deps}},{{.}}{{end}}", "./...") {
			deps := strings.Split(line, ",")
			pkg := deps[0]
			for _, dep := range deps[1:] {
				switch {
				case pkg != module+"/drivertest" && (dep == "testing" || dep == module+"/drivertest"):
					t.Errorf("%s: %s depends on %s, which is for tests", goos, pkg, dep)
				case !slices.Contains(standard, dep) && dep != module && !strings.HasPrefix(dep, module+"/") && !strings.HasPrefix(dep, "golang.org/x/sys/"):
					t.Errorf("%s: %s depends on %s", goos, pkg, dep)
				}
			}
		}
	}
}
