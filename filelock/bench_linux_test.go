package filelock

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func init() {
	roles["echo"] = func([]string) { io.Copy(os.Stdout, os.Stdin) }
	roles["handover"] = func(args []string) { fmt.Println(join(takeTurns(args[0], args[1]))) }
	roles["hot"] = func(args []string) { fmt.Println(hot(args[0], args[1])) }
	roles["soak"] = soak
}

// BenchmarkUncontended compares taking and giving back a lock with the least
// that a lock file can cost: open, flock, close. Both are done in turn, so that
// what else the machine does hits both.
func BenchmarkUncontended(b *testing.B) {
	for name, o := range map[string]*Options{"with a token": nil, "without": {NoTokens: true}} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			open := func() *Backend {
				backend, err := New(dir, o)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { backend.Close() })
				return backend
			}
			backend := open()
			r := request(driver.Exclusive, "a")
			r.Queue = true
			b.Run("backend", func(b *testing.B) {
				compare(b, backend.path("a", lockSuffix), func() error {
					g, err := backend.Acquire(context.Background(), r)
					if err != nil {
						return err
					}
					return g.Hold.Release(context.Background())
				})
			})
			l := distlock.New(open(), nil)
			defer l.Close()
			b.Run("distlock", func(b *testing.B) {
				compare(b, backend.path("b", lockSuffix), func() error {
					lock, err := l.Acquire(context.Background(), "b", distlock.Timeout(5*time.Second))
					if err != nil {
						return err
					}
					return lock.Release()
				})
			})
		})
	}
}

func compare(b *testing.B, path string, lock func() error) {
	floor := func() error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.Close(fd))
	}
	if err := lock(); err != nil { // the first makes the files
		b.Fatal(err)
	}
	b.ReportAllocs()
	const batch = 100 // so that reading the clock doesn't count
	var mine, least time.Duration
	n := 0
	for b.Loop() {
		began := time.Now()
		for range batch {
			if err := lock(); err != nil {
				b.Fatal(err)
			}
		}
		between := time.Now()
		for range batch {
			if err := floor(); err != nil {
				b.Fatal(err)
			}
		}
		mine += between.Sub(began)
		least += time.Since(between)
		n += batch
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(mine.Nanoseconds())/float64(n), "lock-ns")
	b.ReportMetric(float64(least.Nanoseconds())/float64(n), "floor-ns")
	b.ReportMetric(float64(mine)/float64(least), "ratio")
}

// takeTurns takes and gives back a lock many times beside another process that
// does the same, and returns how long after the other's release it got it.
func takeTurns(dir, rounds string) []time.Duration {
	n, _ := strconv.Atoi(rounds)
	b, err := New(dir, nil)
	if err != nil {
		panic(err)
	}
	defer b.Close()
	f, err := os.OpenFile(filepath.Join(dir, "released"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	r := request(driver.Exclusive, "a")
	r.Wait = driver.Forever
	var times []time.Duration
	for range n {
		g, err := b.Acquire(context.Background(), r)
		at := now()
		if err != nil {
			panic(err)
		}
		var last [16]byte // when, and by which process
		f.ReadAt(last[:], 0)
		if pid := binary.NativeEndian.Uint64(last[8:]); pid != 0 && pid != uint64(os.Getpid()) {
			times = append(times, time.Duration(at-int64(binary.NativeEndian.Uint64(last[:]))))
		}
		// Until the other waits again: else there is nothing to hand over.
		for end := time.Now().Add(2 * time.Millisecond); time.Now().Before(end); {
			if first, _ := g.Hold.(*hold).held.file.isFirst(lineEnd); !first {
				break
			}
			time.Sleep(20 * time.Microsecond)
		}
		binary.NativeEndian.PutUint64(last[8:], uint64(os.Getpid()))
		binary.NativeEndian.PutUint64(last[:], uint64(now()))
		f.WriteAt(last[:], 0)
		g.Hold.Release(context.Background())
	}
	return times
}

func join(times []time.Duration) string {
	var b strings.Builder
	for _, d := range times {
		fmt.Fprint(&b, int64(d), " ")
	}
	return b.String()
}

// BenchmarkHandOver measures how long after a release in one process the waiter
// in another has the lock, against a byte through a pipe to another process.
func BenchmarkHandOver(b *testing.B) {
	const rounds = "500"
	b.ReportMetric(0, "ns/op")
	for b.Loop() {
		dir := b.TempDir()
		p := start(b, "handover", dir, rounds)
		times := takeTurns(dir, rounds)
		for s := range strings.FieldsSeq(p.answer()) {
			d, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			times = append(times, time.Duration(d))
		}
		if len(times) < 100 {
			b.Fatal("only ", len(times), " hand-overs")
		}
		slices.Sort(times)
		median := times[len(times)/2]

		echo := start(b, "echo")
		var trips []time.Duration
		for range 500 {
			began := time.Now()
			echo.send("")
			echo.answer()
			trips = append(trips, time.Since(began)/2)
		}
		slices.Sort(trips)
		b.ReportMetric(float64(median.Microseconds()), "median-µs")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		b.ReportMetric(float64(trips[len(trips)/2].Microseconds()), "pipe-µs")
		b.ReportMetric(float64(median)/float64(trips[len(trips)/2]), "ratio")
	}
}

const hotGoroutines = 32

// hot takes one lock in many goroutines for a while, and returns how often each
// got it, and how long the one that waited longest did, in µs.
func hot(dir, length string) string {
	d, _ := time.ParseDuration(length)
	l, err := distlock.Open(context.Background(), "file://"+dir, nil)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	var longest time.Duration
	var each [hotGoroutines]int
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i := range each {
		wg.Go(func() {
			n, most := 0, time.Duration(0)
			for began := time.Now(); began.Before(end); n++ {
				lock, err := l.Acquire(context.Background(), "a")
				if err != nil {
					panic(err)
				}
				at := time.Now()
				most = max(most, at.Sub(began))
				if err := lock.Release(); err != nil {
					panic(err)
				}
				began = time.Now()
			}
			mu.Lock()
			defer mu.Unlock()
			each[i] = n
			longest = max(longest, most)
		})
	}
	wg.Wait()
	return strings.Trim(fmt.Sprint(longest.Microseconds(), each), "[]")
}

// BenchmarkHot has two processes with many goroutines take one lock as often as
// they can.
func BenchmarkHot(b *testing.B) {
	const length = 3 * time.Second
	b.ReportMetric(0, "ns/op")
	for b.Loop() {
		dir := b.TempDir()
		p := start(b, "hot", dir, length.String())
		results := []string{hot(dir, length.String()), p.answer()}
		longest, sum, least, most := 0, 0, 1<<62, 0
		for _, r := range results {
			for i, field := range strings.FieldsFunc(r, func(c rune) bool { return c == ' ' || c == '[' }) {
				n, err := strconv.Atoi(field)
				if err != nil {
					b.Fatal(r)
				}
				if i == 0 {
					longest = max(longest, n)
					continue
				}
				sum, least, most = sum+n, min(least, n), max(most, n)
			}
		}
		b.ReportMetric(float64(sum)/length.Seconds(), "locks/s")
		b.ReportMetric(float64(least)/float64(most), "fewest/most")
		b.ReportMetric(float64(longest)/1000, "longest-ms")
	}
}

const (
	soakProcesses  = 8
	soakGoroutines = 32
)

// soak counts under a lock, in many goroutines: DIR DURATION FILE. It leaves in
// the file how long each waited.
func soak(args []string) {
	length, _ := time.ParseDuration(args[1])
	l, err := distlock.Open(context.Background(), "file://"+args[0], nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	counter := filepath.Join(args[0], "counter")
	var mu sync.Mutex
	var waits bytes.Buffer
	var failures []error
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for range soakGoroutines {
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				lock, err := l.Acquire(context.Background(), "soak")
				waited := time.Since(began)
				if err == nil {
					token, _ := lock.Token()
					err = errors.Join(countUp(counter, token), lock.Release())
				}
				mu.Lock()
				binary.Write(&waits, binary.NativeEndian, int64(waited))
				if err != nil {
					failures = append(failures, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	failures = append(failures, l.Close(), os.WriteFile(args[2], waits.Bytes(), 0o600))
	fmt.Println(errors.Join(failures...))
}

// countUp adds one to the counter in a file, without any care but the lock that
// the caller holds.
func countUp(path string, token uint64) error {
	var n, last uint64
	text, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(text), &n, &last)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil && token <= last {
		err = fmt.Errorf("token %d after %d", token, last)
	}
	return errors.Join(err, os.WriteFile(path, fmt.Appendf(nil, "%d %d", n+1, token), 0o600))
}

// TestSoak is run with FILELOCK_SOAK=30s or another time.
func TestSoak(t *testing.T) {
	length := os.Getenv("FILELOCK_SOAK")
	if length == "" {
		t.Skip("takes long; run it with FILELOCK_SOAK=30s")
	}
	d, err := time.ParseDuration(length)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	openDir(t, dir)
	var all []*process
	for i := range soakProcesses {
		all = append(all, start(t, "soak", dir, length, filepath.Join(dir, fmt.Sprint("waits", i))))
	}
	var waits []time.Duration
	for i, p := range all {
		select {
		case s := <-p.lines:
			if s != "<nil>" {
				t.Error(s)
			}
		case <-time.After(d + time.Minute):
			t.Fatal("no answer")
		}
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("waits", i)))
		if err != nil {
			t.Fatal(err)
		}
		mine := make([]int64, len(raw)/8)
		if _, err := binary.Decode(raw, binary.NativeEndian, mine); err != nil {
			t.Fatal(err)
		}
		t.Logf("process %d: %d times", i, len(mine))
		for _, w := range mine {
			waits = append(waits, time.Duration(w))
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "counter"))
	if err != nil {
		t.Fatal(err)
	}
	var n, last int
	if fmt.Sscan(string(text), &n, &last); n != len(waits) {
		t.Errorf("counted %d of %d", n, len(waits))
	}
	slices.Sort(waits)
	median, longest := waits[len(waits)/2], waits[len(waits)-1]
	t.Logf("%d times in %v, waited: median %v, 99 %% %v, longest %v, %.1f times the median",
		n, d, median, waits[len(waits)*99/100], longest, float64(longest)/float64(median))
	if longest > 10*median {
		t.Error("somebody waited more than ten times the median")
	}
}
