package azurelock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// The tests run against Azurite, Microsoft's emulator. It is a stand-in: where
// it is known to differ from what the service's documentation says, the test that
// meets it says so.

const account = "distlocktest"

// accountKey is made up; Azurite is told to accept it.
var accountKey = base64.StdEncoding.EncodeToString([]byte("a key of the tests, and of no account of the real service"))

// An emulator is one Azurite process, private to this run.
type emulator struct {
	address string // host:port
	dir     string // "": it keeps its data in memory
	script  string
	cmd     *exec.Cmd
	ended   <-chan error
	errands chan func() // to be run by a goroutine of nobody's
}

var shared struct {
	once sync.Once
	e    *emulator
	err  error
}

// azurite returns the emulator that most tests share. Without one a test is
// skipped, and fails under CI.
func azurite(t testing.TB) *emulator {
	t.Helper()
	shared.once.Do(func() {
		var script string
		if script, shared.err = install(); shared.err == nil {
			shared.e, shared.err = startAzurite(script, "", "0")
		}
	})
	if shared.err != nil {
		unavailable(t, shared.err)
	}
	return shared.e
}

// ownAzurite returns one that nobody else uses. With a directory for its data it may
// be restarted.
func ownAzurite(t testing.TB, dir string) *emulator {
	t.Helper()
	azurite(t)
	e, err := startAzurite(shared.e.script, dir, "0")
	if err != nil {
		unavailable(t, err)
	}
	// What waits for the emulator's end is not to be taken for what a case of the
	// suite left running.
	e.errands = make(chan func())
	go func() {
		for f := range e.errands {
			f()
		}
	}()
	t.Cleanup(func() {
		close(e.errands)
		e.stop()
	})
	return e
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("no Azurite: %v", err)
	}
	t.Skipf("NOT TESTED against Azurite, which needs Node.js and npm: %v", err)
}

// install puts the version of Azurite that testdata pins into a folder that git
// ignores, unless it is there, and returns its script.
func install() (string, error) {
	lock, err := os.ReadFile("testdata/azurite/package-lock.json")
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	dir, err := filepath.Abs(filepath.Join("..", ".tools", "azurite-"+hex.EncodeToString(sum[:6])))
	if err != nil {
		return "", err
	}
	script := filepath.Join(dir, "node_modules/azurite/dist/src/blob/main.js")
	if _, err := os.Stat(script); err == nil {
		return script, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Others may install it at the same time; whoever is first with the rename
	// has won.
	temp, err := os.MkdirTemp(filepath.Dir(dir), "azurite-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	for _, f := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile("testdata/azurite/" + f)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(temp, f), b, 0o644); err != nil {
			return "", err
		}
	}
	fmt.Fprintln(os.Stderr, "installing Azurite into", dir)
	npm := exec.Command("npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = temp
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Rename(temp, dir); err != nil {
		if _, err := os.Stat(script); err != nil {
			return "", err
		}
	}
	return script, nil
}

func startAzurite(script, dir, port string) (*emulator, error) {
	e := &emulator{dir: dir, script: script}
	args := []string{script, "--blobHost", "127.0.0.1", "--blobPort", port, "--silent", "--skipApiVersionCheck", "--disableTelemetry"}
	if dir == "" {
		args = append(args, "--inMemoryPersistence", "--extentMemoryLimit", "64")
	} else {
		args = append(args, "--location", dir)
	}
	e.cmd = exec.Command("node", args...)
	e.cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+account+":"+accountKey)
	e.cmd.SysProcAttr = withParent()
	said := &transcript{address: make(chan string, 1)}
	e.cmd.Stdout, e.cmd.Stderr = said, said
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	e.ended = ended
	go func() { ended <- e.cmd.Wait() }()
	select {
	case e.address = <-said.address:
		return e, nil
	case err := <-ended:
		return nil, fmt.Errorf("azurite ended: %w: %s", err, said.text())
	case <-time.After(3 * time.Minute):
		return nil, errors.Join(errors.New("azurite doesn't listen within three minutes"), e.cmd.Process.Kill())
	}
}

// transcript is what the emulator says. It finds the address that it listens on.
type transcript struct {
	address chan string

	mu  sync.Mutex
	all []byte
}

func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, b...)
	if _, after, ok := bytes.Cut(s.all, []byte("successfully listens on http://")); ok {
		if address, _, ok := bytes.Cut(after, []byte("\n")); ok && len(s.address) == 0 {
			s.address <- string(bytes.TrimSpace(address))
			s.all = nil
		}
	}
	return len(b), nil
}

func (s *transcript) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.all)
}

// stop ends the emulator, with time to write what it keeps.
func (e *emulator) stop() {
	e.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(time.Minute, func() { e.cmd.Process.Kill() })
	defer timer.Stop()
	<-e.ended
}

// restart stops the emulator and starts it again on the same port and data.
func (e *emulator) restart(t testing.TB) {
	t.Helper()
	result := make(chan error)
	e.errands <- func() {
		e.stop()
		_, port, _ := net.SplitHostPort(e.address)
		for begun := time.Now(); ; {
			again, err := startAzurite(e.script, e.dir, port)
			if err == nil {
				e.cmd, e.ended = again.cmd, again.ended
			}
			// Somebody's connection may have been given the port meanwhile.
			if err == nil || time.Since(begun) > time.Minute {
				result <- err
				return
			}
		}
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

// endpoint returns the URL of the blob service.
func (e *emulator) endpoint() string { return "http://" + e.address + "/" + account }

var containers atomic.Int64

// container returns a client of a new container.
func (e *emulator) container(t testing.TB) *container.Client {
	t.Helper()
	name := fmt.Sprintf("c%d-%d", os.Getpid(), containers.Add(1))
	c := client(t, e.endpoint(), name, nil)
	if _, err := c.Create(context.Background(), nil); err != nil {
		t.Fatalf("creating a container: %v", err)
	}
	return c
}

// started is later than any fake clock says.
var started = time.Now()

// client returns a client with connections of its own, which end with the test.
// Its retries are those of the SDK.
func client(t testing.TB, endpoint, name string, wrap func(http.RoundTripper) http.RoundTripper) *container.Client {
	t.Helper()
	cred, err := sharedKey()
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential(endpoint+"/"+name, cred, clientOptions(t, wrap))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func clientOptions(t testing.TB, wrap func(http.RoundTripper) http.RoundTripper) *container.ClientOptions {
	transport := &http.Transport{
		MaxIdleConnsPerHost: 64,
		DisableKeepAlives:   time.Now().Before(started), // what waits on an idle connection would stop a fake clock
	}
	t.Cleanup(transport.CloseIdleConnections)
	var rt http.RoundTripper = transport
	if wrap != nil {
		rt = wrap(rt)
	}
	return &container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: &http.Client{Transport: rt}}}
}

// containerName returns the container's name.
func containerOf(c *container.Client) string {
	before, _, _ := strings.Cut(c.URL(), "?")
	return before[strings.LastIndexByte(before, '/')+1:]
}

// roundTrip is an http.RoundTripper.
type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// operation returns what a request asks for.
func operation(r *http.Request) string {
	query := r.URL.Query()
	switch comp := query.Get("comp"); {
	case comp == "lease":
		return header(r, "x-ms-lease-action")
	case comp == "metadata":
		return "set"
	case comp == "list":
		return "list"
	case query.Get("restype") == "container":
		return r.Method + " container"
	case r.Method == http.MethodPut:
		return "create"
	case r.Method == http.MethodHead:
		return "look"
	case r.Method == http.MethodDelete:
		return "delete"
	}
	return r.Method
}

func sharedKey() (*container.SharedKeyCredential, error) {
	return container.NewSharedKeyCredential(account, accountKey)
}
