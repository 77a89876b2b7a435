//go:build unix

package azurelock

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

func init() {
	roles["worker"] = worker
}

// worker takes the lock and works: before each piece of work it asks whether it
// still has the lock, and says what time it was just before.
func worker() error {
	b, err := openFromEnv()
	if err != nil {
		return err
	}
	l := distlock.New(b, &distlock.Options{TTL: minTTL})
	lock, err := l.Acquire(context.Background(), "a")
	if err != nil {
		return err
	}
	fmt.Println("held")
	for {
		now := time.Now().UnixNano()
		if lock.Err() != nil {
			break
		}
		fmt.Println("work", now)
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("lost")
	fmt.Println("release:", lock.Release())
	return nil
}

// startWorker starts a process that works under the lock "a" of the container.
func startWorker(t *testing.T, e *emulator, name string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=worker", endpointEnv+"="+e.endpoint(), nameEnv+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = withParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100_000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line := <-lines; line != "held" {
		t.Fatal(line)
	}
	return cmd, lines
}

// A process that was stopped past its lease sees the loss before it does any
// more work.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	e := azurite(t)
	c := e.container(t)
	b := New(c, nil)
	cmd, lines := startWorker(t, e, containerOf(c))
	<-lines // it works
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	took := freeWithin(t, minTTL+time.Minute, b, "a")
	g := take(t, b, request("a"))
	next := time.Now()
	t.Logf("the next one got it after %v", took)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var after []string
	for line := range lines {
		what, rest, _ := strings.Cut(line, " ")
		var at int64
		fmt.Sscan(rest, &at)
		switch {
		case what == "work" && time.Unix(0, at).After(next):
			t.Errorf("it worked %v after somebody else had the lock", time.Unix(0, at).Sub(next))
		case what == "work" && time.Unix(0, at).After(stopped.Add(time.Second)):
			t.Errorf("it worked %v after it was stopped", time.Unix(0, at).Sub(stopped))
		case what != "work":
			after = append(after, line)
		}
	}
	if len(after) != 2 || after[0] != "lost" || !strings.Contains(after[1], "lock lost") {
		t.Errorf("%q", after)
	}
	if free(t, b, "a") {
		t.Error("the holder that woke up took the next one's lease away")
	}
	release(t, g)
}

// A process that is killed keeps its lock for the rest of the lease.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	e := azurite(t)
	c := e.container(t)
	b := New(c, nil)
	cmd, _ := startWorker(t, e, containerOf(c))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("free after %v", freeWithin(t, minTTL+time.Minute, b, "a"))
}
