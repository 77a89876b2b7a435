package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock-go/distlock"
)

const (
	envURL      = "DISTLOCK_URL"
	envResource = "DISTLOCK_RESOURCE"
	envToken    = "DISTLOCK_TOKEN"

	defaultURL = "file:"
	defaultTTL = 30 * time.Second
)

// runner is one distlock run.
type runner struct {
	// Flags.
	url       string
	noWait    bool
	timeout   time.Duration // -1: none
	given     givenDuration // of that
	shared    bool
	semaphore int // 0: none
	ttl       time.Duration
	killAfter time.Duration // -1: by ttl
	verbose   bool
	urlFrom   string // where the URL is from

	resource string
	command  []string

	stderr  io.Writer
	signals chan os.Signal
	locker  *distlock.Locker
	asked   chan struct{} // closed when it was said who holds the resource; nil if not asked
}

func newRunCommand() *cobra.Command {
	r := &runner{timeout: -1, killAfter: -1}
	r.given.duration = (*duration)(&r.timeout)
	c := &cobra.Command{
		Use:                   "run [-v] [-n | --timeout D] [--shared | --semaphore N] [flags] RESOURCE -- COMMAND [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command while holding a lock",
		Long:                  runHelp(),
		Example:               runExamples,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, args []string) error {
			r.stderr = c.ErrOrStderr()
			if err := r.check(c, args); err != nil {
				return err
			}
			return r.run()
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the resource is the command's
	f.SortFlags = false
	f.BoolVarP(&r.noWait, "no-wait", "n", false, "give up at once if the resource is held")
	f.Var(&r.given, "timeout", "how long to wait for the resource, such as 30s (default: for ever)")
	f.BoolVar(&r.shared, "shared", false, "take a reader's lock: many at once, but none beside an exclusive one")
	f.IntVar(&r.semaphore, "semaphore", 0, "take one of `N` permits; all who use the resource must say the same N")
	f.StringVar(&r.url, "url", "", "where the lock lives (default: $"+envURL+", else "+defaultURL+")")
	f.Var((*duration)(&r.ttl), "ttl", "lease to ask for, where locks are leases: how long the resource stays\ntaken if this host dies (default 30s)")
	f.Var((*duration)(&r.killAfter), "kill-after", "time between SIGTERM and SIGKILL when the lock is lost; at most ttl/10\n(default: ttl/20, at most 2s)")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr which store it is, who has the lock, and when it is got")
	_ = c.RegisterFlagCompletionFunc("url", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var urls []string
		for _, b := range backends {
			urls = append(urls, cobra.CompletionWithDesc(b.url, b.what))
		}
		return urls, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
	for _, name := range []string{"timeout", "semaphore", "ttl", "kill-after"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return c
}

// check checks the arguments, as far as it takes no backend to know better.
func (r *runner) check(c *cobra.Command, args []string) error {
	changed := c.Flags().Changed
	switch {
	case r.noWait && changed("timeout"):
		return usageError(c, "-n and --timeout exclude each other: -n is --timeout 0s")
	case r.shared && changed("semaphore"):
		return usageError(c, "--shared and --semaphore exclude each other: permits are all of one kind")
	case changed("semaphore") && r.semaphore < 1:
		return usageError(c, "--semaphore %d: at least one permit is needed", r.semaphore)
	case changed("ttl") && r.ttl == 0:
		return usageError(c, "--ttl 0s: a lease must last")
	case len(args) == 0:
		return usageError(c, "no resource and no command given")
	case args[0] == "":
		return usageError(c, "the resource is empty: is a variable not set?")
	}
	r.resource, r.command = args[0], args[1:]
	if len(r.command) > 0 {
		switch first := r.command[0]; {
		case first == "--":
			r.command = r.command[1:]
		case strings.HasPrefix(first, "-"):
			return usageError(c, "%q after the resource: flags go before it, and -- between it and the command", first)
		}
	}
	if len(r.command) == 0 {
		return usageError(c, "no command given")
	}
	if r.noWait {
		r.timeout = 0
	}
	if r.url == "" {
		if changed("url") {
			return usageError(c, "the URL is empty: is a variable not set?")
		}
		env, set := os.LookupEnv(envURL)
		switch {
		case !set:
			r.url, r.urlFrom = defaultURL, "the default"
		case env == "":
			return usageError(c, "$"+envURL+" is set, but empty: is a variable in it not set? The default, "+defaultURL+", is for this user on this host only; unset it to mean that")
		default:
			r.url, r.urlFrom = env, "$"+envURL
		}
	}
	ttl := r.ttl
	if ttl == 0 {
		ttl = defaultTTL
	}
	switch most := ttl / 10; {
	case r.killAfter < 0:
		r.killAfter = min(ttl/20, 2*time.Second)
	case r.killAfter > most:
		return usageError(c, "--kill-after %v: a loss is known %v, a tenth of the ttl, before the resource can pass on, and the command must be gone by then", r.killAfter, most)
	}
	return nil
}

// run acquires the lock, runs the command, and releases the lock. It returns
// an error also for a command that fails: it is the exit code.
func (r *runner) run() error {
	path, err := lookUp(r.command[0])
	if err != nil {
		return err
	}
	interrupted := false
	defer func() {
		if interrupted {
			interruptGroup()
		}
	}()

	r.signals = make(chan os.Signal, 64)
	listen(r.signals, ending)
	lock, err := r.acquire()
	if r.locker != nil {
		defer func() { r.warn(r.locker.Close()) }()
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }() // for the ways out that aren't below

	listen(r.signals, forwarded)
	c, err := startChild(path, r.command, r.environ(lock.Token()))
	if err != nil {
		return startError(path, err)
	}
	exit, lost := supervise(c, lock, r.signals, r.killAfter)
	interrupted = exit.signal == os.Interrupt && c.hasTTY
	c.close()

	err = lock.Release()
	switch {
	case lost:
		interrupted = false
		return &exitError{exitLost, fmt.Errorf("%w; %s was ended", lock.Err(), r.command[0])}
	case errors.Is(err, distlock.ErrLost):
		// Nobody had noticed before, and the store alone knows since when.
		interrupted = false
		return &exitError{exitLost, fmt.Errorf("%w; %s had exited with code %d, but may have run beside another holder", err, r.command[0], exit.code)}
	case err != nil:
		r.warn(err)
	default:
		r.verbosely("released %q", r.resource)
	}
	if exit.code != 0 {
		return &exitError{code: exit.code}
	}
	return nil
}

// acquire opens the store and waits for the lock, or for a signal.
func (r *runner) acquire() (*distlock.Lock, error) {
	type result struct {
		lock *distlock.Lock
		err  error
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begun := time.Now()
	results := make(chan result, 1)
	go func() {
		lock, err := r.openAndAcquire(ctx)
		results <- result{lock, err}
	}()
	var got result
	select {
	case got = <-results:
	case s := <-r.signals:
		signal.Reset(ending...) // a second one needn't wait for the cleaning up
		cancel()
		if got := <-results; got.lock != nil {
			r.warn(got.lock.Release())
		}
		return nil, &exitError{exitSignal + int(s.(syscall.Signal)), fmt.Errorf("gave up waiting for %q: %v", r.resource, s)}
	}
	if got.err == nil {
		cancel() // who held it is no longer of interest
	}
	if r.asked != nil {
		<-r.asked
	}
	switch err := got.err; {
	case err == nil:
		token := ""
		if t, ok := got.lock.Token(); ok {
			token = fmt.Sprintf(", token %d", t)
		}
		r.verbosely("acquired %q after %v%s", r.resource, time.Since(begun).Round(time.Millisecond), token)
		return got.lock, nil
	case errors.Is(err, distlock.ErrNotAcquired):
		return nil, &exitError{exitNotAcquired, r.notAcquired(err)}
	case errors.Is(err, distlock.ErrBadArgument), errors.Is(err, errors.ErrUnsupported) && (r.shared || r.semaphore > 0):
		return nil, &exitError{exitUsage, err}
	default:
		return nil, &exitError{exitStore, err}
	}
}

var errSilentStore = errors.New("the store did not answer in time: is it reachable, and healthy?")

func (r *runner) openAndAcquire(ctx context.Context) (*distlock.Lock, error) {
	begun := time.Now()
	o := &distlock.Options{
		TTL:  r.ttl,
		Note: "run " + filepath.Base(r.command[0]), // not the arguments: they may hold secrets
	}
	if r.verbose {
		o.Trace = &distlock.Trace{Waiting: func(context.Context, distlock.Event) { r.askWho(ctx) }}
	}
	opening := ctx
	if r.timeout > 0 {
		// As much as a first question gets at least.
		least := 100 * time.Millisecond
		var cancel context.CancelFunc
		opening, cancel = context.WithTimeoutCause(ctx, max(r.timeout, least), errSilentStore)
		defer cancel()
	}
	locker, err := distlock.Open(opening, r.url, o)
	if err != nil {
		return nil, err
	}
	r.locker = locker
	r.verbosely("the store is %s", r.store())
	options := r.kind()
	if r.timeout >= 0 {
		left := r.timeout
		if left > 0 {
			left = max(left-time.Since(begun), 1) // 0 would be a single try, which may take longer
		}
		options = append(options, distlock.Timeout(left))
	}
	return locker.Acquire(ctx, r.resource, options...)
}

// store names the store, without what may be a secret.
func (r *runner) store() string {
	from := r.urlFrom
	if from == "" {
		from = "--url"
	}
	u, err := url.Parse(r.url)
	if err != nil { // it was opened all the same
		return "that of " + from
	}
	place := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, OmitHost: u.OmitHost}
	return fmt.Sprintf("%s (%s)", &place, from)
}

// notAcquired words an error that matches ErrNotAcquired. Of the library's text it
// takes the reason, which comes last: the time in it is what was left when the store
// was open, and not what the user gave.
func (r *runner) notAcquired(err error) error {
	text := err.Error()
	why := text[strings.LastIndex(text, ": ")+2:]
	within := ""
	if r.timeout > 0 {
		within = " within " + r.given.text
	}
	hint := "to wait longer, set --timeout"
	if !r.verbose {
		hint += "; to see who holds it, -v"
	}
	return fmt.Errorf("%q not acquired%s: %s; %s", r.resource, within, why, hint)
}

// kind returns the options for the kind of lock.
func (r *runner) kind() []distlock.AcquireOption {
	switch {
	case r.shared:
		return []distlock.AcquireOption{distlock.Shared()}
	case r.semaphore > 0:
		return []distlock.AcquireOption{distlock.Semaphore(r.semaphore)}
	}
	return nil
}

// askWho says who holds the resource. The asking must not delay the waiting.
func (r *runner) askWho(ctx context.Context) {
	r.asked = make(chan struct{})
	go func() {
		defer close(r.asked)
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		// Without an answer, for whatever reason, it is somebody else.
		options := r.kind()
		if r.shared {
			options = nil // Holders tells of all but permits together
		}
		holders, _ := r.locker.Holders(ask, r.resource, options...)
		switch who := describe(holders, time.Now()); {
		case ctx.Err() != nil: // it isn't waited for any more
		case r.timeout == 0:
			r.verbosely("%q is %s", r.resource, who)
		default:
			r.verbosely("waiting for %q: %s", r.resource, who)
		}
	}()
}

// environ returns the child's environment.
func (r *runner) environ(token uint64, hasToken bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == envResource || name == envToken // of a run around this one
	})
	env = append(env, envResource+"="+r.resource)
	if hasToken {
		env = append(env, envToken+"="+strconv.FormatUint(token, 10))
	}
	return env
}

func (r *runner) verbosely(format string, args ...any) {
	if r.verbose {
		say(r.stderr, format, args...)
	}
}

// warn reports what went wrong without changing how the command ends.
func (r *runner) warn(err error) {
	if err != nil {
		say(r.stderr, "warning: %s", strings.TrimPrefix(err.Error(), "distlock: "))
	}
}
