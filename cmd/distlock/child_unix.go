//go:build unix

package main

import (
	"errors"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are meant for the child. The others have no
// meaning between processes, can't be caught, or are looked at elsewhere.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGALRM,
	unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT,
}

// ending are the signals that end the wait for the lock.
var ending = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}

// listen has signals sent to ch. Those that we were told to ignore (nohup, a
// shell's &) stay ignored, also in the child.
func listen(ch chan<- os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
}

// child is a running command, the leader of a process group of its own.
//
// It has the terminal while we would have it: then the keys that send signals
// send them to it, and it may read. When it stops, we stop too, so that the
// shell that started us takes over, and when that continues us, we continue
// it.
type child struct {
	pid     int // and process group
	events  chan event
	tty     int  // -1 if there is no terminal
	hasTTY  bool // the terminal is the child's
	stopped bool

	// While we are suspended or about to be: ticks when we aren't.
	ticks  *time.Ticker
	ticked int
}

// startChild starts a program with our standard files and whatever others were
// left open for it.
//
// The calling goroutine must live as long as the child.
func startChild(path string, argv, env []string) (*child, error) {
	// The kernel counts the death of the thread that started the child as that of
	// its parent.
	runtime.LockOSThread()

	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   dieWithParent(&syscall.SysProcAttr{Setpgid: true}),
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if errors.Is(err, unix.ENOEXEC) {
		// A script without a first line that says what it is for. The C library's
		// execvp and the shells do the same.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, argv[1:]...), attr)
	}
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, events: make(chan event), tty: -1, ticks: time.NewTicker(time.Hour)}
	c.ticks.Stop()
	if tty, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		c.tty = tty
		// Not before the child exists: it would ignore it too. From here on the
		// terminal may be given and taken, and written to, from the background.
		signal.Ignore(unix.SIGTTOU)
		c.giveTTY()
	}
	go c.watch()
	return c, nil
}

// watch reports what happens to the child until it exits.
func (c *child) watch() {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(c.pid, &ws, unix.WUNTRACED|waitContinued, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			// Nobody else waits for it, so this can't be; but without a status there
			// is no way to go on.
			panic("distlock: wait: " + err.Error())
		case ws.Exited():
			c.events <- event{exited: true, code: ws.ExitStatus()}
			return
		case ws.Signaled():
			c.events <- event{exited: true, code: exitSignal + int(ws.Signal()), signal: ws.Signal()}
			return
		case ws.Stopped():
			c.events <- event{signal: ws.StopSignal()}
		case ws.Continued():
			c.events <- event{}
		}
	}
}

// signal sends a signal to the child's process group. It may be gone.
func (c *child) signal(s unix.Signal) { _ = unix.Kill(-c.pid, s) }

func (c *child) terminate()    { c.signal(unix.SIGTERM) }
func (c *child) kill()         { c.signal(unix.SIGKILL) }
func (c *child) anyLeft() bool { return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH) }

// pass passes a signal on to the child that was sent to us.
func (c *child) pass(s os.Signal) {
	if s == unix.SIGCONT {
		c.resume()
		return
	}
	c.signal(s.(unix.Signal))
}

// changed deals with a child that was stopped or continued.
func (c *child) changed(e event) {
	if !e.stopped() || c.tty == -1 {
		return // without a terminal there is no shell to take over
	}
	switch e.signal {
	case unix.SIGTTIN, unix.SIGTTOU:
		// It wants the terminal. Perhaps just before it got it, or we have been
		// moved to the foreground meanwhile.
		if fg := c.foreground(); fg == c.pid || fg == unix.Getpgrp() {
			c.resume()
			return
		}
	case unix.SIGSTOP:
		if !c.hasTTY {
			return // by hand and from elsewhere: whoever did it will continue it
		}
	}
	c.suspend(e.signal)
}

// suspend stops us, and all of our process group, as the terminal would have
// if the child had stayed there: other parts of a pipeline, the script that
// called us. All get one signal at one time, since the shell may continue us as
// soon as it sees the others stopped. It is SIGTTIN as we don't catch that.
func (c *child) suspend(s os.Signal) {
	c.takeTTY()
	_ = unix.Kill(0, unix.SIGTTIN)
	if s != unix.SIGSTOP {
		c.ticked = 0
		c.ticks.Reset(10 * time.Millisecond)
	}
}

// tick is called for each tick. When no shell is there to continue us, the
// kernel doesn't stop us, and the child, which asked to be stopped, is to be as
// if it hadn't been, too. Else this takes long enough for SIGCONT to be noticed
// first, since what has passed while we were stopped is just one tick.
func (c *child) tick() {
	if c.ticked++; c.ticked == 10 {
		c.resume()
	}
}

// resume continues the child.
func (c *child) resume() {
	c.ticks.Stop()
	c.giveTTY()
	c.signal(unix.SIGCONT)
	c.stopped = false
}

// foreground returns the process group that has the terminal, or -1.
func (c *child) foreground() int {
	pgrp, err := unix.IoctlGetInt(c.tty, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	if pgrp > math.MaxInt32 {
		pgrp >>= 32 // the kernel wrote 32 bits into 64, of a big-endian machine
	}
	return pgrp
}

// giveTTY gives the terminal to the child if it is ours to give.
func (c *child) giveTTY() {
	if c.tty != -1 && c.foreground() == unix.Getpgrp() {
		c.hasTTY = unix.IoctlSetPointerInt(c.tty, unix.TIOCSPGRP, c.pid) == nil
	}
}

// takeTTY takes the terminal back if it was given.
func (c *child) takeTTY() {
	if c.hasTTY {
		_ = unix.IoctlSetPointerInt(c.tty, unix.TIOCSPGRP, unix.Getpgrp())
		c.hasTTY = false
	}
}

// close takes back what the child had, after it has exited.
func (c *child) close() {
	c.takeTTY()
	if c.tty != -1 {
		_ = unix.Close(c.tty)
	}
}

// interruptGroup sends SIGINT to our process group, ourselves included: when
// Ctrl-C has ended the child, the script or the pipeline that we are part of
// should hear of it as if the child hadn't been in a group of its own. A shell
// ends its script only if we die of the signal.
func interruptGroup() {
	signal.Reset(unix.SIGINT)
	_ = unix.Kill(0, unix.SIGINT)
	time.Sleep(100 * time.Millisecond) // it may be delivered to another thread
}
