//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminal is a terminal with somebody typing at it.
type terminal struct {
	file   *os.File
	output chan string
	seen   string // and not yet expected
	exited chan int
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

// newTerminal starts a program as the first of a session on a new terminal.
func newTerminal(t *testing.T, name string, args ...string) *terminal {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "TERM=dumb", "PS1=$ ", "DISTLOCK="+program, "GO="+filepath.Join(t.TempDir(), "go"), envURL+"="+newURL(t))
	file, err := pty.Start(c)
	if err != nil {
		skip(t, "no terminal: "+err.Error())
	}
	term := &terminal{file: file, output: make(chan string, 1000), exited: make(chan int, 1)}
	go func() {
		defer close(term.output)
		for {
			b := make([]byte, 4096)
			n, err := file.Read(b)
			if err != nil {
				return
			}
			term.output <- string(b[:n])
		}
	}()
	go func() {
		_ = c.Wait() // its ProcessState says it
		term.exited <- c.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		file.Close()
	})
	return term
}

func (term *terminal) typeIn(t *testing.T, text string) {
	t.Helper()
	if _, err := term.file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// expect waits until the text comes out.
func (term *terminal) expect(t *testing.T, text string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		if _, after, ok := strings.Cut(term.seen, text); ok {
			term.seen = after
			return
		}
		select {
		case more, ok := <-term.output:
			if !ok {
				t.Fatalf("no %q before the end, just %q", text, term.seen)
			}
			term.seen += more
		case <-timeout:
			t.Fatalf("no %q, just %q so far", text, term.seen)
		}
	}
}

func (term *terminal) wantCode(t *testing.T, want int) {
	t.Helper()
	select {
	case got := <-term.exited:
		if got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("still running; output %q", term.seen)
	}
}

// newShell starts an interactive shell.
func newShell(t *testing.T) *terminal {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		skip(t, "no bash")
	}
	term := newTerminal(t, bash, "--norc", "--noprofile", "-i")
	term.expect(t, "$ ")
	return term
}

// awaitReader waits until a child that echoes what it reads does so: then it
// has the terminal.
func (term *terminal) awaitReader(t *testing.T) {
	t.Helper()
	term.expect(t, "ready.\r\n")
	term.typeIn(t, "anybody\n")
	term.expect(t, "got <anybody>")
}

func TestTerminal(t *testing.T) {
	term := newTerminal(t, program, "run", "r", "--", "sh", "-c",
		`test -t 0 && test -t 1 && test -t 2 && echo is a terminal; read line; echo "got <$line>"; exit 4`)
	term.expect(t, "is a terminal")
	term.typeIn(t, "hello\n")
	term.expect(t, "got <hello>")
	term.wantCode(t, 4)
}

func TestCtrlC(t *testing.T) {
	t.Run("Caught", func(t *testing.T) {
		term := newTerminal(t, program, "run", "r", "--", "sh", "-c", `trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.01; done`)
		term.expect(t, "ready")
		term.typeIn(t, ctrlC)
		term.expect(t, "caught")
		term.wantCode(t, 5)
	})
	t.Run("EndsScript", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, `bash -c 'for i in 1 2 3; do $DISTLOCK run r -- sh -c "echo ready $i.; exec sleep 1000"; done'`+"\n")
		term.expect(t, "ready 1.\r\n")
		term.typeIn(t, ctrlC)
		term.expect(t, "$ ")
		term.typeIn(t, "echo \"code <$?>\"\n")
		term.expect(t, "code <130>")
		if strings.Contains(term.seen, "ready 2") {
			t.Errorf("the script went on: %q", term.seen)
		}
	})
	t.Run("WhileWaiting", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, "$DISTLOCK run r -- sh -c 'echo ready.; sleep 1000' &\n")
		term.expect(t, "ready.\r\n")
		term.typeIn(t, "$DISTLOCK run -v r -- true\n")
		term.expect(t, "waiting for")
		term.typeIn(t, ctrlC)
		term.expect(t, "gave up")
		term.typeIn(t, `echo "code <$?>"; kill %1`+"\n")
		term.expect(t, "code <130>")
	})
}

func TestCtrlZ(t *testing.T) {
	const child = `$DISTLOCK run r -- sh -c 'echo ready.; while read line; do echo "got <$line>"; done; exit 6'`
	t.Run("Shell", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, child+"\n")
		term.awaitReader(t)
		for range 3 {
			term.typeIn(t, ctrlZ)
			term.expect(t, "Stopped")
			term.typeIn(t, "echo $((6*7))\n") // the shell has the terminal
			term.expect(t, "42\r\n")
			term.typeIn(t, "$DISTLOCK run -n r -- true; echo \"code <$?>\"\n") // still held
			term.expect(t, "code <75>")
			term.typeIn(t, "fg\n")
			term.expect(t, "ready.; while read line")
			term.typeIn(t, "hello\n")
			term.expect(t, "got <hello>")
		}
		term.typeIn(t, ctrlD)
		term.expect(t, "$ ")
		term.typeIn(t, "echo \"code <$?>\"\n")
		term.expect(t, "code <6>")
	})
	// All of a job stops: the script that runs distlock, and the pipeline it is in.
	t.Run("Script", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, "sh -c '"+strings.ReplaceAll(child, "'", `'\''`)+"; echo script code $?.' | cat\n")
		term.awaitReader(t)
		for range 2 {
			term.typeIn(t, ctrlZ)
			term.expect(t, "Stopped")
			term.expect(t, "\n$ ")
			term.typeIn(t, "fg\n")
			term.expect(t, "ready.; while read line")
			term.typeIn(t, "hello\n")
			term.expect(t, "got <hello>")
		}
		term.typeIn(t, ctrlD)
		term.expect(t, "script code 6.")
	})
	// A job in the background that wants to read stops until it is in the
	// foreground.
	t.Run("Background", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, child+" &\n")
		term.expect(t, "ready.\r\n")
		term.typeIn(t, "until jobs | grep Stopped; do sleep 0.01; done; echo now\n")
		term.expect(t, "now\r\n")
		term.typeIn(t, "fg\n")
		term.expect(t, "ready.; while read line")
		term.typeIn(t, "hello\n")
		term.expect(t, "got <hello>")
	})
	// So does one that is moved to the foreground before it wants to.
	t.Run("Foreground", func(t *testing.T) {
		term := newShell(t)
		term.typeIn(t, "$DISTLOCK run r -- sh -c 'echo ready.; until test -e $0; do sleep 0.01; done; read line; echo \"got <$line>\"' $GO &\n")
		term.expect(t, "ready.\r\n")
		term.typeIn(t, "(sleep 0.2; touch $GO) &\n")
		term.expect(t, "$ ")
		term.typeIn(t, "fg %1\n")
		term.expect(t, "read line")
		term.typeIn(t, "hello\n")
		term.expect(t, "got <hello>")
	})
	// Where no shell could continue it, nothing stops.
	t.Run("NoShell", func(t *testing.T) {
		term := newTerminal(t, program, "run", "r", "--", "sh", "-c", `trap "echo continued" CONT; echo ready.; while :; do read line; echo "got <$line>"; done`)
		term.awaitReader(t)
		term.typeIn(t, ctrlZ)
		term.expect(t, "continued")
		term.typeIn(t, ctrlC)
		select {
		case <-term.exited:
		case <-time.After(patience):
			t.Fatal("still running")
		}
	})
}
