// Package drivertest is the conformance suite for backends of package distlock:
// what package driver asks for in prose, it asks for in some 180 cases. A
// backend that isn't run through it isn't finished.
//
// # Use
//
// Write a [Harness], which tells the suite how to open the backend and how to
// do to its store what happens to stores, and pass it to [Run]:
//
//	func TestMain(m *testing.M) {
//		drivertest.Main(m, func() (driver.Backend, error) {
//			return foolock.New(os.Getenv("FOOLOCK_TEST_URL"))
//		})
//	}
//
//	func TestConformance(t *testing.T) {
//		url := startFoo(t)
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(t testing.TB) driver.Backend {
//				b, err := foolock.New(url)
//				if err != nil {
//					t.Fatal(err)
//				}
//				return b
//			},
//			Tokens: true,
//			Sever: func(t testing.TB, b driver.Backend, r driver.Request, g driver.Grant) {
//				killConnection(t, url, r.Owner.ID)
//			},
//			Process:   func(testing.TB) []string { return []string{"FOOLOCK_TEST_URL=" + url} },
//			Restart:   func(t testing.TB) { restartFoo(t, url) },
//			Resources: func(t testing.TB) map[string]int { return countConnections(t, url) },
//			Omit: map[string]string{
//				"Mute": "there is no proxy in front of the store",
//			},
//		})
//	}
//
// That is all there is to it. What a backend can do beyond the minimum (modes,
// leases, driver.Upgrader, driver.Undoer, driver.Inspector) the
// suite finds out by itself. What it can't be put to must be declared in
// [Harness.Omit], with the reason; Run logs what was left out.
//
// # Cases
//
// Each case is about one sentence of the contract and is a subtest named for
// it, as in P09_S11_release_after_loss_spares_next_holder: P is the promise to
// users that it upholds, S the way in which locks fail in the field that it
// guards against; see below. A broken backend fails in few cases, whose names
// say what is broken.
// Some cases go through package distlock, for what users see of it, and some
// start other processes, and kill or stop them.
//
// A case that hangs fails with the stacks of its goroutines, and doesn't keep
// the others waiting. A case also fails if goroutines that it started are still
// in the backend's package twenty seconds after the backends were closed.
//
// The promises:
//
//	P01  at most one exclusive holder, and never re-entrant
//	P02  a nil error means held, any other means not
//	P03  held by another, given up by the caller, store broken: three kinds of errors
//	P04  limits on waiting hold at any length
//	P05  a context that is done before fails, and leaves nothing
//	P06  context and timeout bound the wait, never the holding
//	P07  nothing stays behind after a failure, also when an answer was lost
//	P08  the end of the context ends the call
//	P09  Release gives back its own holding and no other
//	P10  what failed once doesn't spoil what comes later
//	P11  a holder learns of its loss in time
//	P12  a session is kept while it can be, and not after its release
//	P13  a loss is told once, to all whom it concerns
//	P14  fencing tokens grow over everything
//	P15  what the dead held comes free
//	P16  a lock that is dropped is noticed
//	P17  any string is a resource, and distinct strings are distinct ones
//	P18  waiters are woken, in order, and lose nothing to those that give up
//	P20  many locks and waiters cost little
//	P21  Do holds the lock for as long as its function runs
//	P22  AcquireAll takes all or nothing
//	P23  readers, writers, upgrades and permits exclude whom they should
//	P24  what a backend can't do, it says
//	P25  Close ends everything of its own, and nothing else
//	P26  errors keep secrets
//
// The ways to fail:
//
//	S01  the answer is lost, and the lock held for nobody
//	S02  the store is silent, and the caller hangs on it
//	S04  errors that can't be told apart
//	S06  the server grants what nobody waits for any more
//	S07  each failed try leaves something at the server
//	S08  times below a second are rounded to none, to a second, to for ever
//	S09  the deadline of the acquire ends the holding
//	S10  a cancel comes at a bad moment
//	S11  what was lost is released, or renewed, on top of the next holder
//	S12  the store's locks are re-entrant within a connection
//	S13  a failed release blocks the name for ever
//	S14  what was closed goes on holding
//	S15  a second release counts
//	S16  a cancelled wait or upgrade drops what was held before
//	S17  what was dropped is renewed for ever
//	S20  renewal goes on after the release
//	S21  the loss is noticed late, S22 or noticed and not told
//	S23  a process is stopped for longer than its lease
//	S28  the lock is free, and the waiter sleeps on
//	S30  each waiter takes a connection
//	S32  one broken session breaks all that comes after it
//	S33  a waiter that gave up takes the wake-up of the next
//	S34  names are kept for ever
//	S35  names that differ are one, by case, blanks, length, characters
//	S36  names share a hash
//
// # Time
//
// Cases run eight at a time and wait for the real store. On a fast one all take
// some ten seconds, and with leases a few times [Harness.TTL] more. Run them
// with the race detector.
package drivertest
