package dbsession

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A statement of the caller's that takes an hour is no failure, and keeps one look
// at the connection waiting, and not one for each heartbeat.
func TestP20_CallersStatementKeepsOneLookWaiting(t *testing.T) {
	db := sql.OpenDB(newServer())
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := NewCaller(conn, errRefused, func(err error) bool { return !errors.Is(err, errRefused) })
	begun, over, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		conn.Raw(func(any) error { close(begun); <-over; return nil })
	}()
	<-begun
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := s.Renew(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines wait", n)
	}
	close(over)
	<-ended
	conn.Close()
	for i := 0; s.looking.Load(); i++ { // for the statement's end
		if i == 60_000 {
			t.Fatal("it looks for ever")
		}
		time.Sleep(time.Millisecond)
	}
	if err := s.Renew(t.Context()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("closed: %v", err)
	}
	<-s.Lost()
}
