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
// leases, driver.Passer, driver.Upgrader, driver.Undoer, driver.Inspector) the
// suite finds out by itself. What it can't be put to must be declared in
// [Harness.Omit], with the reason; Run logs what was left out.
//
// # Cases
//
// Each case is about one sentence of the contract and is a subtest named for
// it, as in P09_S11_release_after_loss_spares_next_holder: P is the promise to
// users in docs/safety.md, S the kind of failure from the field that it guards
// against. A broken backend fails in few cases, whose names say what is broken.
// Some cases go through package distlock, for what users see of it, and some
// start other processes, and kill or stop them.
//
// A case that hangs fails with the stacks of its goroutines, and doesn't keep
// the others waiting. A case also fails if goroutines that it started are still
// in the backend's package two seconds after the backends were closed.
//
// # Time
//
// Cases run eight at a time and wait for the real store. On a fast one all take
// some ten seconds, and with leases a few times [Harness.TTL] more. Run them
// with the race detector.
package drivertest
