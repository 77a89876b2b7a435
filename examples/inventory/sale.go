package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A sale is how many buyers order how much of how little.
type sale struct{ processes, buyers, stock, orders int }

// outcome is what became of a sale.
type outcome struct {
	stock int // before
	left  int // after, in the file
	sold  int64
	busy  int64 // times that a buyer was asked to come back later
}

func (o outcome) String() string {
	verdict := "exact"
	if over := o.sold - int64(o.stock); over > 0 {
		verdict = fmt.Sprintf("oversold by %d", over)
	}
	return fmt.Sprintf("%3d sold of %d, %2d left in the file: %s (%d answers of 429, tried again)", o.sold, o.stock, o.left, verdict, o.busy)
}

// hold starts the servers, has the buyers buy, and stops the servers.
func (s sale) hold(ctx context.Context, stockPath, lockURL string) (result outcome, err error) {
	if err := writeStock(stockPath, s.stock); err != nil {
		return outcome{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	var servers []*server
	defer func() {
		stop()
		for _, server := range servers {
			err = errors.Join(err, server.wait())
		}
	}()
	for range s.processes {
		server, err := start(ctx, stockPath, lockURL)
		if err != nil {
			return outcome{}, err
		}
		servers = append(servers, server)
	}

	result.stock = s.stock
	client := &http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	orders := make(chan string, s.orders) // the address that each goes to
	for i := range s.orders {
		orders <- servers[i%len(servers)].address
	}
	close(orders)
	var sold, busy atomic.Int64
	failed := make(chan error, s.buyers)
	var buyers sync.WaitGroup
	for range s.buyers {
		buyers.Go(func() {
			for address := range orders {
				if err := buy(ctx, client, address, &sold, &busy); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	buyers.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err != nil {
		return outcome{}, err
	}
	result.sold, result.busy = sold.Load(), busy.Load()
	result.left, err = readStock(stockPath)
	return result, err
}

// buy orders one unit, again and again while the shop is busy.
func buy(ctx context.Context, client *http.Client, address string, sold, busy *atomic.Int64) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/buy", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
		response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
			sold.Add(1)
			return nil
		case http.StatusGone:
			return nil
		case http.StatusTooManyRequests:
			busy.Add(1)
			time.Sleep(rand.N(20 * time.Millisecond))
		default:
			return fmt.Errorf("%s: %s", request.URL, response.Status)
		}
	}
}

// server is one server process.
type server struct {
	cmd     *exec.Cmd
	address string
}

// start starts this program again as a server, which ends with ctx.
func start(ctx context.Context, stockPath, lockURL string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "serve", stockPath, lockURL)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = stdin.Close         // the server shuts down then
	cmd.WaitDelay = 10 * time.Second // and is killed if it doesn't
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stdin.Close()
		ended := s.wait()
		if ctx.Err() != nil { // it was told to end before it had started
			return nil, context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("the server didn't start: %w", err), ended)
	}
	s.address = strings.TrimSpace(line)
	return s, nil
}

// wait waits until the process has ended after its context did.
func (s *server) wait() error {
	err := s.cmd.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // as it was asked to
	}
	return err
}
