package program

import (
	"os"
	"path/filepath"
	"testing"
)

func TestName(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	for want, args := range map[string][]string{
		"":     nil,
		"tool": {filepath.Join("some", "folder", "tool"), "-flag"},
	} {
		if os.Args = args; Name() != want {
			t.Errorf("%q of %q", Name(), args)
		}
	}
}
