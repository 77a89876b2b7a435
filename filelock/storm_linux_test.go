package filelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock"
)

func init() { roles["storm"] = stormChild }

const (
	stormProcs = 6
	stormNames = 3
)

// A stormSlot is what one process has.
type stormSlot struct {
	doomed  atomic.Int64 // odd while the process is being killed
	writers [stormNames]atomic.Int64
	readers [stormNames]atomic.Int64
	_       [8]int64
}

// A stormBoard is in memory that all processes share.
type stormBoard struct {
	slots      [stormProcs]stormSlot
	last       [stormNames]atomic.Uint64
	violations atomic.Int64
	regress    atomic.Int64
	grants     atomic.Int64
	lost       atomic.Int64
	late       atomic.Int64
	other      atomic.Int64
}

func openBoard(path string) *stormBoard {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(unsafe.Sizeof(stormBoard{}))); err != nil {
		panic(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(stormBoard{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return (*stormBoard)(unsafe.Pointer(&b[0]))
}

// stormChild takes locks until it is killed, and notes on the board what it has and
// what is wrong with it.
func stormChild(args []string) {
	dir, board := args[0], openBoard(args[1])
	me, _ := strconv.Atoi(args[2])
	tokens, removed := args[3], args[4] == "removed"
	slot := &board.slots[me]
	var lockers []*distlock.Locker
	for i := range 2 {
		b, err := New(dir, &Options{NoTokens: tokens == "no" || tokens == "mixed" && (me+i)%2 == 0})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		lockers = append(lockers, distlock.New(b, &distlock.Options{HandoffCount: []int{-1, 0}[i]}))
	}
	check := func(n int, writer bool, what string) {
		for j := range board.slots {
			o := &board.slots[j]
			gen := o.doomed.Load()
			w, r := o.writers[n].Load(), o.readers[n].Load()
			if j == me {
				if writer {
					w--
				} else {
					r--
				}
			}
			if gen%2 == 0 && o.doomed.Load() == gen && (w > 0 || writer && r > 0) {
				if board.violations.Add(1) < 5 && !removed {
					fmt.Fprintf(os.Stderr, "VIOLATION %s in %d: slot %d has %d writers, %d readers of %d\n", what, me, j, w, r, n)
				}
			}
		}
	}
	var all sync.WaitGroup
	for g := range 4 {
		l := lockers[g%2]
		all.Go(func() {
			for {
				n := rand.IntN(stormNames)
				var opts []distlock.AcquireOption
				kind := rand.IntN(5)
				switch kind {
				case 0, 1:
					opts = append(opts, distlock.Shared())
				case 2:
					opts = append(opts, distlock.Upgradeable())
				}
				most := 2 * time.Second
				switch rand.IntN(3) {
				case 0:
					opts = append(opts, distlock.Timeout(0))
				case 1:
					opts = append(opts, distlock.Timeout(rand.N(20*time.Millisecond)))
				default:
					opts = append(opts, distlock.Timeout(2*time.Second))
					most = 3 * time.Second
				}
				before := board.last[n].Load()
				start := time.Now()
				k, err := l.Acquire(context.Background(), fmt.Sprint("n", n), opts...)
				if time.Since(start) > most {
					board.late.Add(1)
				}
				if err != nil {
					if !errors.Is(err, distlock.ErrNotAcquired) {
						if board.other.Add(1) < 5 {
							fmt.Fprintln(os.Stderr, "OTHER", err)
						}
					}
					continue
				}
				board.grants.Add(1)
				note := func() {
					token, ok := k.Token()
					if !ok {
						return
					}
					// What is handed on of a lock whose file was removed has a smaller token.
					handedOn := token&1023 != 0
					if token <= before && (!removed || !handedOn) {
						if board.regress.Add(1) < 5 {
							fmt.Fprintf(os.Stderr, "TOKEN %d after %d (kind %d)\n", token, before, kind)
						}
					}
					for {
						old := board.last[n].Load()
						if old >= token || board.last[n].CompareAndSwap(old, token) {
							break
						}
					}
				}
				note()
				if kind > 2 {
					slot.writers[n].Add(1)
					check(n, true, "exclusive")
					if rand.IntN(4) == 0 {
						time.Sleep(rand.N(time.Millisecond))
					}
					check(n, true, "exclusive")
					slot.writers[n].Add(-1)
				} else {
					slot.readers[n].Add(1)
					check(n, false, "shared")
					if rand.IntN(4) == 0 {
						time.Sleep(rand.N(time.Millisecond))
					}
					check(n, false, "shared")
					slot.readers[n].Add(-1)
					if kind == 2 && rand.IntN(2) == 0 {
						before = board.last[n].Load()
						if err := k.Upgrade(context.Background(), distlock.Timeout(rand.N(10*time.Millisecond))); err == nil {
							note()
							slot.writers[n].Add(1)
							check(n, true, "upgraded")
							check(n, true, "upgraded")
							slot.writers[n].Add(-1)
						}
					}
				}
				if err := k.Release(); err != nil {
					board.lost.Add(1)
				}
			}
		})
	}
	all.Wait()
}

func storm(t *testing.T, tokens, files string, meddle func(dir string), judge func(t *testing.T, b *stormBoard)) {
	dir := t.TempDir()
	locks := filepath.Join(dir, "locks")
	if err := os.Mkdir(locks, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "board")
	board := openBoard(path)
	run := func(i int) *exec.Cmd {
		cmd := exec.Command(os.Args[0], locks, path, strconv.Itoa(i), tokens, files)
		cmd.Env = append(os.Environ(), roleEnv+"=storm", userEnv+"=")
		cmd.Stderr, cmd.Stdout = os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	kill := func(i int, c *exec.Cmd) {
		board.slots[i].doomed.Add(1)
		c.Process.Signal(syscall.SIGKILL)
		c.Wait()
		for n := range stormNames {
			board.slots[i].writers[n].Store(0)
			board.slots[i].readers[n].Store(0)
		}
		board.slots[i].doomed.Add(1)
	}
	var cmds [stormProcs]*exec.Cmd
	for i := range cmds {
		cmds[i] = run(i)
	}
	end := time.Now().Add(2 * time.Second)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				meddle(locks)
			}
		}
	})
	for time.Now().Before(end) || board.grants.Load() < 100 {
		i := rand.IntN(len(cmds))
		time.Sleep(rand.N(100 * time.Millisecond))
		// Those that come on a slow machine are to get going.
		before := board.grants.Load()
		eventually(t, "locks are granted", func() bool { return board.grants.Load() >= before+10 })
		if rand.IntN(2) == 0 {
			kill(i, cmds[i])
			cmds[i] = run(i)
		} else {
			cmds[i].Process.Signal(syscall.SIGSTOP)
			time.Sleep(rand.N(300 * time.Millisecond))
			cmds[i].Process.Signal(syscall.SIGCONT)
		}
	}
	close(stop)
	wg.Wait()
	for i, c := range cmds {
		kill(i, c)
	}
	t.Logf("%d grants, %d lost, %d late, %d other errors, %d violations, %d tokens fell", board.grants.Load(), board.lost.Load(), board.late.Load(), board.other.Load(), board.violations.Load(), board.regress.Load())
	judge(t, board)
	b, err := New(locks, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := distlock.New(b, nil)
	defer l.Close()
	for n := range stormNames {
		k, err := l.Acquire(t.Context(), fmt.Sprint("n", n), distlock.Timeout(long))
		if err != nil {
			t.Error(err)
			continue
		}
		k.Release()
	}
}

// Processes are killed and stopped, and files are pruned all the time: nobody holds
// beside another, and tokens rise, also where some go without. Where files are
// removed by others, only tokens can tell.
func TestStorm(t *testing.T) {
	strict := func(t *testing.T, b *stormBoard) {
		if b.violations.Load()+b.regress.Load() > 0 || b.grants.Load() < 100 {
			t.Fail()
		}
	}
	prune := func(dir string) {
		_, _ = Prune(context.Background(), dir, 1)
		time.Sleep(rand.N(2 * time.Millisecond))
	}
	for _, tokens := range []string{"yes", "no", "mixed"} {
		t.Run(tokens, func(t *testing.T) { storm(t, tokens, "pruned", prune, strict) })
	}
	tokensRise := func(t *testing.T, b *stormBoard) {
		if b.regress.Load() > 0 {
			t.Fail()
		}
	}
	t.Run("rename", func(t *testing.T) {
		storm(t, "yes", "removed", func(dir string) {
			name := filepath.Join(dir, FileName(fmt.Sprint("n", rand.IntN(stormNames))))
			os.Rename(name, name+".away")
			time.Sleep(rand.N(time.Millisecond))
			os.Rename(name+".away", name)
			time.Sleep(rand.N(5 * time.Millisecond))
		}, tokensRise)
	})
	t.Run("remove", func(t *testing.T) {
		storm(t, "yes", "removed", func(dir string) {
			base := filepath.Join(dir, baseName(fmt.Sprint("n", rand.IntN(stormNames))))
			os.Remove(base + []string{lockSuffix, fenceSuffix}[rand.IntN(2)])
			time.Sleep(rand.N(5 * time.Millisecond))
		}, tokensRise)
	})
}
