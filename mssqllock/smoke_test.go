package mssqllock
import ("testing";"github.com/distlock-go/distlock")
func TestSmoke(t *testing.T) {
	s := theServer(t)
	l, _ := s.locker(t, s.addr(), &Options{Sequence: "x", CreateSequence: true})
	k := mustAcquire(t, l, "a")
	t.Log(k.Token())
	mustBeHeld(t, l, "a")
	mustRelease(t, k)
	k = mustAcquire(t, l, "a", distlock.Shared())
	k2 := mustAcquire(t, l, "a", distlock.Shared())
	k3 := mustAcquire(t, l, "a", distlock.Upgradeable())
	mustRelease(t, k2); mustRelease(t,k)
	if err := k3.Upgrade(t.Context()); err != nil { t.Fatal(err) }
	mustRelease(t,k3)
	k = mustAcquire(t, l, "a", distlock.Semaphore(2))
	k2 = mustAcquire(t, l, "a", distlock.Semaphore(2))
	mustBeHeld(t, l, "a", distlock.Semaphore(2))
	mustRelease(t, k2); mustRelease(t,k)
}
