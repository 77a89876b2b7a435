package filelock

import (
	"os"
	"runtime"
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

const (
	dirEnv    = "FILELOCK_TEST_DIR"
	tokensEnv = "FILELOCK_TEST_TOKENS"
)

func openForSuite() (driver.Backend, error) {
	return New(os.Getenv(dirEnv), &Options{NoTokens: os.Getenv(tokensEnv) == "none"})
}

func TestConformance(t *testing.T) { conform(t, true) }

func TestConformanceWithoutTokens(t *testing.T) { conform(t, false) }

func conform(t *testing.T, tokens bool) {
	dir := inMemory(t)
	env := []string{dirEnv + "=" + dir}
	if !tokens {
		env = append(env, tokensEnv+"=none")
	}
	h := drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			b, err := New(dir, &Options{NoTokens: !tokens})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			return b
		},
		Tokens:  tokens,
		Process: func(testing.TB) []string { return env },
		Sever:   sever,
		Resources: func(t testing.TB) map[string]int {
			return map[string]int{"descriptors": descriptors(t)}
		},
		Omit: map[string]string{
			"Mute":    "nothing is between the caller and the files",
			"Restart": "there is no server",
		},
	}
	if runtime.GOOS == "windows" {
		h.Omit["Sever"] = "an open file can't be removed"
		h.Resources = nil
		h.Omit["Resources"] = "handles of one kind can't be counted"
	}
	drivertest.Run(t, h)
}

// inMemory returns a directory that isn't on a disk, where there is one: the suite
// uses thousands of resources for the first time, each of which waits for the
// disk, on a busy one for longer than some of its cases do.
func inMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "filelock")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// descriptors counts the files that this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
