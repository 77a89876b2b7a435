// Command distlock runs commands under distributed locks.
//
//	distlock run inventory:42 -- sh -c 'echo stock deducted'
//
// See distlock run --help.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes. Those from 64 to 78 are those of sysexits.h, those above 125
// those of the shells.
const (
	exitUsage         = 64
	exitStore         = 69
	exitNotAcquired   = 75
	exitLost          = 76
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// exitError ends the command with a code. Without an error in it there is
// nothing to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	// A message that nobody reads must not end us, and the lock or the child with
	// it. Not ignored, but caught: the child would inherit that it is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	err := newRootCommand().Execute()
	os.Exit(conclude(os.Stderr, err))
}

// conclude says what went wrong, and returns the exit code.
func conclude(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	exit := &exitError{}
	if !errors.As(err, &exit) {
		// Whatever has no code of its own comes from the parsing of arguments.
		exit = &exitError{exitUsage, err}
	}
	if exit.err != nil {
		say(stderr, "%s", exit.err)
	}
	return exit.code
}

// say writes one line. Errors of the library begin with the name already.
func say(stderr io.Writer, format string, args ...any) {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), "distlock: ")
	fmt.Fprintf(stderr, "distlock: %s\n", strings.ReplaceAll(text, "\n", "; "))
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "distlock",
		Short:   "Run commands under distributed locks",
		Long:    rootHelp,
		Example: rootExamples,
		Version: version(),

		// Errors are worded and coded in one place, see conclude.
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, _ []string) error {
			// Somebody who looks around; or a script with an unset variable, which must
			// not go on as if it had run something.
			c.SetOut(c.ErrOrStderr())
			_ = c.Help()
			return &exitError{code: exitUsage}
		},
	}
	root.Flags().Bool("version", false, "print the version") // -v is --verbose elsewhere
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(c, "%w", err)
	})
	root.AddCommand(newRunCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), version()) },
	})
	return root
}

// usageError is about invalid arguments.
func usageError(c *cobra.Command, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &exitError{exitUsage, fmt.Errorf("%w (see %q)", err, c.CommandPath()+" --help")}
}

// version returns the version of this program and what it was built with.
func version() string {
	v := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
	}
	return fmt.Sprintf("distlock %s (%s %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
