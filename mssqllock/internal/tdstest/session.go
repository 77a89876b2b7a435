package tdstest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// session is a connection that has logged in, or is about to.
type session struct {
	srv  *Server
	spid int
	conn net.Conn
	in   *bufio.Reader
	w    tokenWriter
	user User

	encrypted bool // all of it
	login     login
	loginTime time.Time

	// Of the goroutine that runs requests.
	database    string
	lockTimeout time.Duration // negative: none
	noCount     bool
	xactAbort   bool
	doomed      bool // the transaction can only be rolled back
	tranCount   int
	tranID      uint64
	tranName    string // of the outermost
	saves       []savepoint

	own *owner // of session-owned locks
	tx  *owner // of the transaction's, nil outside of one; changed under mu

	mu      sync.Mutex
	running bool          // a request is
	cancel  chan struct{} // of that
	attn    bool          // it was cancelled by the client
	killed  bool
	last    time.Time // start of the last request
}

func (s *session) resetOptions() {
	s.lockTimeout, s.noCount, s.xactAbort = -time.Millisecond, false, false
}

// serve runs the session from the first byte to the last.
func (s *session) serve() {
	defer s.srv.ended(s)
	defer s.close()
	if !s.handshake() {
		return
	}
	s.srv.loggedIn(s)
	requests := make(chan message, 1)
	go s.read(requests)
	for m := range requests {
		if !s.handle(m) {
			break
		}
	}
	s.kill()
	for range requests { // until read has ended
	}
}

// read reads ahead of what runs, so that an attention is seen meanwhile.
func (s *session) read(requests chan<- message) {
	defer close(requests)
	for {
		m, err := readMessage(s.in)
		if f := s.srv.onAttention.Load(); err == nil && m.kind == msgAttention && f != nil && *f != nil {
			(*f)(s.spid)
		}
		s.mu.Lock()
		if err != nil {
			// Nobody is left to answer.
			s.killed = true
			s.stop()
			s.mu.Unlock()
			return
		}
		if m.kind == msgAttention && s.running {
			// [MS-TDS] 2.2.1.7: the reply under way ends with the acknowledgement.
			s.attn = true
			s.stop()
			s.mu.Unlock()
			continue
		}
		if m.kind != msgAttention {
			s.running = true
			s.cancel = make(chan struct{})
			m.cancel = s.cancel
			s.last = time.Now()
		}
		s.mu.Unlock()
		requests <- m
	}
}

// stop cancels the request that runs; s.mu is held.
func (s *session) stop() {
	if s.cancel != nil {
		close(s.cancel)
		s.cancel = nil
	}
}

// kill ends the session at once: its locks are free when it returns.
func (s *session) kill() {
	s.mu.Lock()
	s.killed = true
	s.stop()
	tx := s.tx
	s.mu.Unlock()
	s.srv.locks.end(tx, true)
	s.srv.locks.end(s.own, true)
	s.close()
}

func (s *session) close() { _ = s.conn.Close() }

// reset is what RESETCONNECTION asks for ahead of a request. No page of the
// documentation lists what sp_reset_connection does; that session-owned locks
// and an open transaction go is what SQL Server is known to do. It happens at
// the next use: [MS-TDS] 2.2.3.1.2.
func (s *session) reset(keepTran bool) {
	s.srv.locks.end(s.own, false)
	if !keepTran && s.tranCount > 0 {
		s.endTran(envRollback)
	}
	s.resetOptions()
	if s.login.database != "" && s.database != s.login.database {
		s.use(s.login.database)
	}
	s.w.envBytes(envReset, nil, nil)
}

func (s *session) use(database string) {
	s.w.envText(envDatabase, database, s.database)
	s.mu.Lock()
	s.database = database
	s.mu.Unlock()
}

func (s *session) beginTran(name string) {
	s.tranCount++
	if s.tranCount > 1 {
		return // learn.microsoft.com: "BEGIN TRANSACTION": nesting only counts
	}
	s.tranID = s.srv.nextTran.Add(1)
	s.doomed, s.tranName, s.saves = false, name, nil
	tx := newOwner(s, true)
	s.mu.Lock()
	tx.ended = s.killed
	s.tx = tx
	s.mu.Unlock()
	s.w.envBytes(envBegin, binary.LittleEndian.AppendUint64(nil, s.tranID), nil)
}

// endTran ends the outermost transaction, and with it the locks that it owns.
// learn.microsoft.com: "sp_getapplock", Remarks.
func (s *session) endTran(env byte) {
	s.mu.Lock()
	tx := s.tx
	s.tx = nil
	s.mu.Unlock()
	s.tranCount, s.doomed = 0, false
	s.srv.locks.end(tx, true)
	s.w.envBytes(env, nil, binary.LittleEndian.AppendUint64(nil, s.tranID))
}

func (s *session) commit() error {
	switch {
	case s.tranCount == 0:
		return sqlErr(3902, 16, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.")
	case s.doomed:
		return abortErr(3930, 16, "The current transaction cannot be committed and cannot support operations that write to the log file. Roll back the transaction.")
	case s.tranCount > 1:
		s.tranCount--
	default:
		s.endTran(envCommit)
	}
	return nil
}

// savepoint is one of SAVE TRANSACTION.
type savepoint struct {
	name    string
	granted uint64 // of the locks, how many had been granted before it
}

// save is SAVE TRANSACTION.
func (s *session) save(name string) error {
	if s.tranCount == 0 {
		return sqlErr(628, 16, "Cannot issue SAVE TRANSACTION when there is no active transaction.")
	}
	s.saves = append(s.saves, savepoint{name, s.srv.locks.count()})
	return nil
}

// rollback is ROLLBACK TRANSACTION, of the whole transaction, or to the savepoint
// of the name that was set last. learn.microsoft.com: "ROLLBACK TRANSACTION",
// Locking behavior.
func (s *session) rollback(name string) error {
	if s.tranCount == 0 {
		return sqlErr(3903, 16, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
	}
	if name != "" {
		for i, save := range slices.Backward(s.saves) {
			if save.name != name {
				continue
			}
			if s.doomed {
				return abortErr(3931, 16, "The current transaction cannot be committed and cannot be rolled back to a savepoint. Roll back the entire transaction.")
			}
			s.saves = s.saves[:i+1]
			s.srv.locks.endSince(s.tx, save.granted)
			return nil
		}
		if name != s.tranName {
			return sqlErr(6401, 16, fmt.Sprintf("Cannot roll back %s. No transaction or savepoint of that name was found.", name))
		}
	}
	s.endTran(envRollback)
	return nil
}

// userName is the database principal that the login is: USER_NAME.
func (s *session) userName() string {
	if s.login.user == DefaultUser {
		return "dbo"
	}
	return s.login.user
}

// handle answers one message. It answers false to end the session.
func (s *session) handle(m message) bool {
	if m.kind == msgAttention { // that came too late
		s.w.done(tokDone, doneAttn, 0, 0)
		return s.w.p.end() == nil
	}
	if m.status&statusIgnore != 0 {
		_, ok := s.finish()
		return ok
	}
	if m.status&(statusReset|statusResetSkipTran) != 0 {
		s.reset(m.status&statusResetSkipTran != 0)
	}
	r := &reader{b: m.data}
	r.allHeaders()
	x := &executor{s: s, vars: map[string]*value{}, tables: map[string]*tableVar{}, cancel: m.cancel}
	fault := Continue
	final := byte(tokDone)
	var run func() error
	var what string
	switch m.kind {
	case msgBatch:
		what = r.text(len(r.b) / 2)
		run = func() error { return x.batch(what) }
	case msgRPC:
		final = tokDoneProc
		x.inProc = true
		call, err := parseRPC(r)
		what = call.text()
		run = func() error {
			if err != nil {
				return err
			}
			return call.run(x)
		}
	case msgTranMgr:
		what, run = s.tranRequest(r)
	default:
		return false
	}
	if r.bad {
		return false
	}
	s.srv.logged(s.spid, what)
	if f := s.srv.faultHook(); f != nil {
		fault = f(s.spid, what)
	}
	if fault == DropBefore {
		return false
	}
	status := 0
	if err := run(); err != nil {
		if e, ok := err.(*sqlError); ok { //nolint:errorlint // never wrapped
			x.send(e)
			if e.class >= 20 {
				status |= 0x100
			}
		}
		status |= doneError
	}
	if s.doomed && s.tranCount > 0 && m.kind == msgBatch {
		s.endTran(envRollback)
		x.send(abortErr(3998, 16, "Uncommittable transaction is detected at the end of the batch. The transaction is rolled back."))
		status |= doneError
	}
	if f := s.srv.onReply.Load(); f != nil && *f != nil {
		(*f)(s.spid, what, m.cancel)
	}
	if fault == DropAfter {
		return false
	}
	attn, ok := s.finish()
	if !ok {
		return false
	}
	if attn {
		// learn.microsoft.com: "SET XACT_ABORT": an attention rolls back only with it.
		if s.xactAbort && s.tranCount > 0 {
			s.endTran(envRollback)
		}
		final, status = tokDone, doneAttn
	}
	if s.tranCount > 0 {
		status |= doneInXact
	}
	s.w.done(final, status, 0, 0)
	return s.w.p.end() == nil
}

// finish ends the request. attn tells whether the client has cancelled it.
func (s *session) finish() (attn, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	attn = s.attn
	s.running, s.attn, s.cancel = false, false, nil
	return attn, !s.killed
}

// tranRequest reads a transaction manager request, [MS-TDS] 2.2.6.9.
func (s *session) tranRequest(r *reader) (what string, run func() error) {
	const (
		begin    = 5
		commit   = 7
		rollback = 8
	)
	switch r.uint16() {
	case begin:
		return "BEGIN TRANSACTION", func() error { s.beginTran(""); return nil }
	case commit:
		return "COMMIT TRANSACTION", s.commit
	case rollback:
		return "ROLLBACK TRANSACTION", func() error { return s.rollback("") }
	}
	return "?", func() error {
		return abortErr(8009, 16, "The transaction manager request is unknown here.")
	}
}
