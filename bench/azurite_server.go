//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// azuriteServer is Microsoft's emulator, started by this run.
type azuriteServer struct {
	place   place
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has
	release string
	runs    int
}

func startAzurite(ctx context.Context) (store, error) {
	node, err := lookUp("node")
	if err != nil {
		return nil, err
	}
	dir, err := installAzurite(ctx)
	if err != nil {
		return nil, err
	}
	s := &azuriteServer{place: place{User: "bench", Secret: base64.StdEncoding.EncodeToString([]byte(rand.Text()))}, ended: make(chan struct{})}
	s.cmd = exec.CommandContext(ctx, node, filepath.Join(dir, "dist/src/blob/main.js"), "--blobHost", "127.0.0.1", "--blobPort", "0",
		"--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
	s.cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+s.place.User+":"+s.place.Secret)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := &announcement{address: make(chan string, 1)}
	s.cmd.Stdout, s.cmd.Stderr = said, said
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // what it said tells why it ended
		close(s.ended)
	}()
	select {
	case s.place.Address = <-said.address:
	case <-s.ended:
		return nil, fmt.Errorf("azurite ended: %s", said.text())
	case <-time.After(time.Minute):
		s.close()
		return nil, errors.New("azurite doesn't listen within a minute")
	}
	var about struct{ Version string }
	if b, err := os.ReadFile(filepath.Join(dir, "package.json")); err == nil && json.Unmarshal(b, &about) == nil {
		s.release = about.Version
	}
	return s, nil
}

// installAzurite installs the version that the tests of azurelock pin, in the
// folder where they look for it.
func installAzurite(ctx context.Context) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	pinned := filepath.Join(root, "azurelock/testdata/azurite")
	lock, err := os.ReadFile(filepath.Join(pinned, "package-lock.json"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(root, ".tools", "azurite-"+hex.EncodeToString(sum[:6]))
	module := filepath.Join(dir, "node_modules/azurite")
	if _, err := os.Stat(module); err == nil {
		return module, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "azurite-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	for _, f := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join(pinned, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(temp, f), b, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	fmt.Fprintln(os.Stderr, "installing Azurite into", dir)
	npm := exec.CommandContext(ctx, "npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = temp
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, out[max(0, len(out)-1000):])
	}
	if err := os.Rename(temp, dir); err != nil {
		if _, err := os.Stat(module); err != nil {
			return "", err
		}
	}
	return module, nil
}

// repository returns the folder that has go.work, the working directory or above
// it.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.work here or above: run it in the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// An announcement is what the emulator says. It finds the address that it
// listens on.
type announcement struct {
	address chan string

	mu  sync.Mutex
	all []byte
}

func (a *announcement) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, b...)
	if _, after, ok := bytes.Cut(a.all, []byte("successfully listens on http://")); ok && len(a.address) == 0 {
		if address, _, ok := bytes.Cut(after, []byte("\n")); ok {
			a.address <- string(bytes.TrimSpace(address))
			a.all = nil
		}
	}
	return len(b), nil
}

func (a *announcement) text() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return bytes.Clone(a.all)
}

// prepare makes a container for the run.
func (s *azuriteServer) prepare(ctx context.Context, _ string) (place, error) {
	s.runs++
	p := s.place
	p.Name = fmt.Sprint("run", s.runs)
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	c, err := openContainer(p, transport)
	if err == nil {
		_, err = c.Create(ctx, nil)
	}
	return p, err
}

// observe counts the connections that are there: clients keep those that they
// opened. The memory of the emulator says nothing about Azure.
func (s *azuriteServer) observe(context.Context) (observation, error) {
	at, err := netip.ParseAddrPort(s.place.Address)
	if err != nil {
		return nothing, err
	}
	n, err := connections(at.Port())
	return observation{connections: n, memory: -1}, err
}

func (s *azuriteServer) version() string { return "Azurite " + s.release }

func (s *azuriteServer) close() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.ended
}
