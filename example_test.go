package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/locallock"
)

// The code is that of the README.
func Example() {
	ctx := context.Background()
	locks, err := distlock.Open(ctx, "local:", nil) // or os.Getenv("DISTLOCK_URL")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = locks.Do(ctx, "inventory:42", func(ctx context.Context) error {
		fmt.Println("stock deducted") // ctx is canceled if the lock is lost
		return nil
	}, distlock.Timeout(5*time.Second))
	if errors.Is(err, distlock.ErrNotAcquired) {
		fmt.Println("busy, try later") // somebody else has it: answer 429
	} else if err != nil {
		log.Print(err)
	}
	// Output: stock deducted
}

func ExampleLocker_Acquire() {
	ctx := context.Background()
	locks := distlock.New(locallock.New(), nil)
	defer locks.Close()

	lock, err := locks.Acquire(ctx, "inventory:42")
	if err != nil {
		log.Print(err)
		return
	}
	defer lock.Release()

	_, err = locks.Acquire(ctx, "inventory:42", distlock.Timeout(10*time.Millisecond))
	fmt.Println(err)
	// Output: distlock: acquire "inventory:42" (local): not acquired within 10ms: held by another
}

func ExampleLock_Upgrade() {
	ctx := context.Background()
	locks := distlock.New(locallock.New(), nil)
	defer locks.Close()

	lock, err := locks.Acquire(ctx, "price-list", distlock.Upgradeable())
	if err != nil {
		log.Print(err)
		return
	}
	defer lock.Release()

	// Others may read beside us, while we find out whether there is something to
	// change.
	reader, err := locks.TryAcquire(ctx, "price-list", distlock.Shared())
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("one more reads")
	reader.Release()

	if err := lock.Upgrade(ctx, distlock.Timeout(time.Second)); err != nil {
		log.Print(err)
		return
	}
	fmt.Println("nobody else reads or writes")
	// Output:
	// one more reads
	// nobody else reads or writes
}

func ExampleSemaphore() {
	ctx := context.Background()
	locks := distlock.New(locallock.New(), nil)
	defer locks.Close()

	for range 3 {
		permit, err := locks.TryAcquire(ctx, "thumbnails", distlock.Semaphore(2))
		fmt.Println(err)
		if err == nil {
			defer permit.Release()
		}
	}
	// Output:
	// <nil>
	// <nil>
	// distlock: acquire "thumbnails" (local): not acquired: held by another
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What the README shows is what Example runs.
func TestReadmeExample(t *testing.T) {
	_, block, _ := strings.Cut(read(t, "README.md"), "```go\n")
	block, _, ok := strings.Cut(block, "```\n")
	if !ok {
		t.Fatal("no block of Go code in README.md")
	}
	_, body, _ := strings.Cut(read(t, "example_test.go"), "func Example() {\n")
	body, _, ok = strings.Cut(body, "\t// Output:")
	if !ok {
		t.Fatal("no Example in example_test.go")
	}
	body = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body, "")
	if block != body {
		t.Errorf("README.md shows\n%s\nwhile Example is\n%s", block, body)
	}
}

// Links between the documents lead somewhere.
func TestDocumentLinks(t *testing.T) {
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, doc := range append(docs, root...) {
		for _, m := range link.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}
