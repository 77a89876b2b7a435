package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// forwarded are the signals that are meant for the child: Ctrl-C and
// Ctrl-Break, and the end of the console session.
var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

// ending are the signals that end the wait for the lock.
var ending = forwarded

// listen has signals sent to ch.
func listen(ch chan<- os.Signal, signals []os.Signal) { signal.Notify(ch, signals...) }

// child is a running command, in a process group and a job of its own. The job
// holds all that it starts, and ends it when we die.
//
// A group of its own doesn't get Ctrl-C. All that can be sent to it is
// Ctrl-Break, so that is what every signal becomes.
type child struct {
	process *os.Process
	job     windows.Handle
	events  chan event

	// Of job control, which this system doesn't have.
	hasTTY, stopped bool
	ticks           struct{ C <-chan time.Time }
}

// startChild starts a program with our standard files. What it starts before
// it is in the job, within microseconds, is not in it.
func startChild(path string, argv, env []string) (*child, error) {
	job, err := newJob(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)
	if err != nil {
		return nil, err
	}
	process, err := os.StartProcess(path, argv, &os.ProcAttr{
		Env:   env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP},
	})
	if err != nil {
		return nil, errors.Join(err, windows.CloseHandle(job))
	}
	var assignErr error
	err = process.WithHandle(func(handle uintptr) {
		assignErr = windows.AssignProcessToJobObject(job, windows.Handle(handle))
	})
	if err = errors.Join(err, assignErr); err != nil {
		return nil, errors.Join(err, process.Kill(), windows.CloseHandle(job))
	}
	c := &child{process: process, job: job, events: make(chan event)}
	go c.watch()
	return c, nil
}

func newJob(flags uint32) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	if err := limitJob(job, flags); err != nil {
		return 0, errors.Join(err, windows.CloseHandle(job))
	}
	return job, nil
}

func limitJob(job windows.Handle, flags uint32) error {
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: flags},
	}
	_, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err
}

// watch reports the exit of the child.
func (c *child) watch() {
	state, err := c.process.Wait()
	if err != nil {
		panic("distlock: wait: " + err.Error()) // the handle is ours, so this can't be
	}
	c.events <- event{exited: true, code: state.ExitCode()}
}

// pass passes a signal on to the child.
func (c *child) pass(os.Signal) { c.terminate() }

func (c *child) terminate() {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(c.process.Pid))
}

func (c *child) kill() { _ = windows.TerminateJobObject(c.job, 1) }

func (c *child) anyLeft() bool {
	var info struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		times                                                                 [4]int64
		pageFaults, totalProcesses, activeProcesses, totalTerminatedProcesses uint32
	}
	err := windows.QueryInformationJobObject(c.job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	return err != nil || info.activeProcesses > 0
}

func (c *child) changed(event) {}
func (c *child) tick()         {}

// close lets what the child has left behind live on.
func (c *child) close() {
	_ = limitJob(c.job, 0)
	_ = windows.CloseHandle(c.job)
}

func interruptGroup() {}
