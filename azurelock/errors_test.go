package azurelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// scripted returns a backend on a service that gives the answer, as status and
// code, to each request that has one, and 201 to the others.
func scripted(t *testing.T, o *Options, answers map[string]string) *Backend {
	return New(client(t, "http://scripted.invalid", "c", func(http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			status, code, _ := strings.Cut(answers[operation(r)], " ")
			n := map[string]int{
				"":    map[string]int{"look": 200, "set": 200, "renew": 200, "release": 200, "delete": 202}[operation(r)],
				"403": 403, "404": 404, "409": 409, "412": 412, "500": 500, "400": 400,
			}[status]
			if n == 0 {
				n = 201
			}
			h := http.Header{}
			if code != "" {
				h.Set("x-ms-error-code", code)
			}
			if op := operation(r); op == "acquire" || op == "renew" {
				h.Set("x-ms-lease-id", leaseID(r))
			}
			return &http.Response{StatusCode: n, Status: http.StatusText(n), Header: h, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		})
	}), o)
}

// leaseID is what the request says, under whichever name.
func leaseID(r *http.Request) string {
	return cmp.Or(header(r, "x-ms-lease-id"), header(r, "x-ms-proposed-lease-id"))
}

// header returns what the request has in a header, which the SDK doesn't write as
// Go does.
func header(r *http.Request, name string) string {
	for k, v := range r.Header {
		if strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}

// A success that isn't about our lease is none: it comes from something between.
func TestAnswersOfOthers(t *testing.T) {
	for _, asked := range []string{"acquire", "renew"} {
		for _, id := range []string{"", "5a9c6b8e-0000-4000-8000-000000000000"} {
			b := New(client(t, "http://scripted.invalid", "c", func(http.RoundTripper) http.RoundTripper {
				return roundTrip(func(r *http.Request) (*http.Response, error) {
					op := operation(r)
					h := http.Header{}
					switch {
					case op == asked && id != "":
						h.Set("x-ms-lease-id", id)
					case op != asked:
						h.Set("x-ms-lease-id", strings.ToUpper(leaseID(r)))
					}
					status := map[string]int{"renew": http.StatusOK, "release": http.StatusOK}[op]
					if status == 0 {
						status = http.StatusCreated
					}
					return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
				})
			}), nil)
			g, err := b.Acquire(t.Context(), request("a"))
			if asked == "renew" {
				if err != nil {
					t.Fatal(err)
				}
				before := g.Session.(*hold).left()
				err = g.Session.Renew(t.Context())
				if after := g.Session.(*hold).left(); after > before {
					t.Errorf("%s with %q counts as a renewal", asked, id)
				}
			}
			if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "something between") {
				t.Errorf("%s with %q: %v", asked, id, err)
			}
		}
	}
}

// credential is an azcore.TokenCredential.
type credential func(ctx context.Context) (azcore.AccessToken, error)

func (c credential) GetToken(ctx context.Context, _ policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return c(ctx)
}

// Who is slow is said: the credential or the service.
func TestSlowCredential(t *testing.T) {
	var silent credential = func(ctx context.Context) (azcore.AccessToken, error) {
		<-ctx.Done()
		return azcore.AccessToken{}, ctx.Err()
	}
	var slow credential = func(ctx context.Context) (azcore.AccessToken, error) {
		err := sleep(ctx, 4*time.Second)
		return azcore.AccessToken{Token: "t", ExpiresOn: time.Now().Add(time.Hour)}, err
	}
	for _, c := range []struct {
		what string
		cred azcore.TokenCredential
		says string // "": it is granted
	}{
		{"of the environment, silent", &lastResort{silent, "no key is set"}, "no key is set, and no other credential answered within 4.5s"},
		{"of the environment, slow", &lastResort{slow, "no key is set"}, ""},
		{"the caller's, silent", silent, "or the credential"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				o := clientOptions(t, func(http.RoundTripper) http.RoundTripper {
					return roundTrip(func(r *http.Request) (*http.Response, error) {
						asked++
						return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"X-Ms-Lease-Id": {leaseID(r)}}, Body: http.NoBody, Request: r}, nil
					})
				})
				cc, err := container.NewClient("https://scripted.invalid/c", c.cred, o)
				if err != nil {
					t.Fatal(err)
				}
				b := New(cc, nil)
				r := request("a")
				_, err = b.Acquire(t.Context(), r)
				if c.says == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				if _, ours := c.cred.(*lastResort); !ours {
					return // it can't be known that it wasn't the service
				}
				if err := b.Undo(t.Context(), r); err != nil || asked != 0 {
					t.Errorf("%d requests without a token: %v", asked, err)
				}
			})
		})
	}
	// What the user reads who didn't wait.
	synctest.Test(t, func(t *testing.T) {
		cc, err := container.NewClient("https://scripted.invalid/c", &lastResort{silent, "no key is set"}, clientOptions(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		l := distlock.New(New(cc, nil), nil)
		defer l.Close()
		if _, err := l.TryAcquire(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "no other credential answered") || errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
	})
}

// With many permits, all taken, a try ends before it is given up: it isn't the
// service that is silent.
func TestManyPermitsTaken(t *testing.T) {
	for n, want := range map[int]time.Duration{10: time.Second, 1000: permitsTime + 100*time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			b := New(client(t, "http://scripted.invalid", "c", func(http.RoundTripper) http.RoundTripper {
				return roundTrip(func(r *http.Request) (*http.Response, error) {
					asked++
					time.Sleep(100 * time.Millisecond)
					h := http.Header{"X-Ms-Error-Code": {"LeaseAlreadyPresent"}}
					return &http.Response{StatusCode: http.StatusConflict, Header: h, Body: http.NoBody, Request: r}, nil
				})
			}), nil)
			b.existing.guess = true // so that none is created
			l := distlock.New(b, nil)
			defer l.Close()
			start := time.Now()
			_, err := l.TryAcquire(t.Context(), "a", distlock.Semaphore(n))
			if took := time.Since(start); !errors.Is(err, distlock.ErrNotAcquired) || took != want || asked != int(want/(100*time.Millisecond)) {
				t.Errorf("of %d permits %d were asked for in %v: %v", n, asked, took, err)
			}
		})
	}
}

// Azurite can't say all that the service can. What the codes mean is in the
// documentation of Lease Blob and of the error codes; that the real service
// gives these codes in these situations is not tested here.
func TestCodes(t *testing.T) {
	held, lost := driver.ErrHeld, driver.ErrLost
	for _, c := range []struct {
		operation, answer string
		want              error  // nil: neither held nor lost
		says              string // "": nothing went wrong
	}{
		{"acquire", "409 LeaseAlreadyPresent", held, "held"},
		{"acquire", "409 LeaseIsBreakingAndCannotBeAcquired", held, "held"},
		{"create", "412 LeaseIdMissing", held, "held"},
		{"create", "409 BlobAlreadyExists", nil, ""},
		{"create", "412 ConditionNotMet", nil, ""},
		{"create", "403 UnauthorizedBlobOverwrite", nil, ""},
		{"create", "403 AuthorizationPermissionMismatch", nil, ""}, // it exists, and may be leased
		{"create", "409 ContainerBeingDeleted", nil, "is being deleted"},
		{"create", "404 ContainerNotFound", nil, "doesn't exist"},
		{"create", "409 ResourceTypeMismatch", nil, "hierarchical namespace"},
		{"create", "403 AuthenticationFailed", nil, "doesn't accept the credential"},
		{"acquire", "404 ContainerNotFound", nil, "create it"},
		{"acquire", "409 ContainerBeingDeleted", nil, "is being deleted"},
		{"acquire", "409 ContainerDisabled", nil, "disabled"},
		{"acquire", "403 AccountIsDisabled", nil, "account is disabled"},
		{"acquire", "403 AuthenticationFailed", nil, "doesn't accept the credential"},
		{"acquire", "403 AuthorizationFailure", nil, "may not do this"},
		{"acquire", "403 AuthorizationPermissionMismatch", nil, "may not do this"},
		{"acquire", "403 InsufficientAccountPermissions", nil, "may not do this"},
		{"acquire", "403 AuthorizationSourceIPMismatch", nil, "address"},
		{"acquire", "403 AuthorizationProtocolMismatch", nil, "https"},
		{"acquire", "500 InternalError", nil, "refused"},
		{"acquire", "400 SomethingNew", nil, "refused (400 SomethingNew, PUT http://scripted.invalid/c/a)"},
		{"acquire", "404 ", nil, "has no code of the blob service's"},
		{"look", "403 AuthorizationPermissionMismatch", nil, "may not do this"},
		{"set", "412 LeaseIdMismatchWithBlobOperation", nil, "refused"},
		{"set", "400 MetadataTooLarge", nil, "no room"},
		{"renew", "409 LeaseIdMismatchWithLeaseOperation", lost, "lock lost"},
		{"renew", "409 LeaseNotPresentWithLeaseOperation", lost, "lock lost"},
		{"renew", "409 LeaseIsBrokenAndCannotBeRenewed", lost, "lock lost"},
		{"renew", "412 LeaseLost", lost, "lock lost"},
		{"renew", "404 BlobNotFound", lost, "lock lost"},
		{"renew", "404 ContainerNotFound", lost, "lock lost"},
		{"renew", "409 ContainerBeingDeleted", lost, "lock lost"},
		{"renew", "403 AuthenticationFailed", nil, "credential"},
		{"renew", "500 OperationTimedOut", nil, "refused"},
		{"release", "409 LeaseIdMismatchWithLeaseOperation", lost, "lock lost"},
		{"release", "409 LeaseNotPresentWithLeaseOperation", lost, "lock lost"},
		{"release", "404 BlobNotFound", lost, "lock lost"},
		{"release", "404 ContainerNotFound", lost, "lock lost"},
		{"release", "403 AuthorizationFailure", nil, "may not do this"},
	} {
		b := scripted(t, &Options{Fencing: c.operation == "look" || c.operation == "set"}, map[string]string{c.operation: c.answer})
		if c.operation == "look" {
			b.existing.guess = true // so that it isn't created, and known
		}
		g, err := b.Acquire(t.Context(), request("a"))
		switch {
		case c.operation == "renew" && err == nil:
			err = g.Session.Renew(t.Context())
		case c.operation == "release" && err == nil:
			err = g.Hold.Release(t.Context())
		}
		for _, special := range []error{held, lost} {
			if errors.Is(err, special) != errors.Is(c.want, special) {
				t.Errorf("%s, %s: %v", c.operation, c.answer, err)
			}
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, %s: %v; want %q", c.operation, c.answer, err, c.says)
		}
		var r *azcore.ResponseError
		if err != nil && !errors.Is(c.want, held) && !errors.As(err, &r) {
			t.Errorf("%s, %s: no *azcore.ResponseError in %v", c.operation, c.answer, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s: of more than one line: %v", c.operation, c.answer, err)
		}
	}
}

func TestNotFoundWhateverIsTried(t *testing.T) {
	// Somebody deletes it each time before it can be leased.
	b := scripted(t, nil, map[string]string{"acquire": "404 BlobNotFound"})
	if _, err := b.Acquire(t.Context(), request("a")); !errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	// It isn't there, and may not be created.
	b = scripted(t, nil, map[string]string{"acquire": "404 BlobNotFound", "create": "403 AuthorizationPermissionMismatch"})
	if _, err := b.Acquire(t.Context(), request("a")); errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "may not do this") {
		t.Error(err)
	}
}

// The count of permits is in a blob of its own, and what is wrong with that
// doesn't mean that the permit is held: it would stay leased.
func TestLeaseOnTheCountOfPermits(t *testing.T) {
	for what, answers := range map[string]map[string]string{
		"made meanwhile": {"look": "404 BlobNotFound", "create": "412 LeaseIdMissing"},
		"there before":   {"set": "412 LeaseIdMissing"},
	} {
		b := scripted(t, &Options{Fencing: true}, answers)
		b.existing.guess = true // so that the permit isn't created
		_, err := b.Acquire(t.Context(), permit("a", 1))
		if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "break the lease") || !strings.Contains(err.Error(), "fence") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Those of credentials are of many lines.
func TestErrorsOfCredentials(t *testing.T) {
	const azidentity = "DefaultAzureCredential: failed to acquire a token.\nAttempted credentials:\n\tA: no\n\t----\n\tB: no\n"
	cause := errors.New(azidentity)
	err := explain(fmt.Errorf("because, and %w", cause))
	const want = "because, and DefaultAzureCredential: failed to acquire a token.; Attempted credentials:; A: no; B: no"
	if err.Error() != want || !errors.Is(err, cause) {
		t.Errorf("%q", err)
	}
}

// What was never sent isn't kept for an Undo that has nothing to do, or never
// comes.
func TestNothingIsKeptOfWhatWasNeverSent(t *testing.T) {
	shared, short := request("a"), request("a")
	shared.Mode, short.TTL = driver.Shared, minTTL-1
	single := OnBlob(client(t, "http://127.0.0.1:1", "c", nil).NewBlobClient("b"), nil)
	single.name = "another"
	unused := scripted(t, nil, nil)
	closed := scripted(t, nil, nil)
	closed.Close()
	for what, c := range map[string]struct {
		b *Backend
		r driver.Request
	}{
		"a mode that there isn't": {unused, shared},
		"a short lease":           {unused, short},
		"bad options":             {New(nil, nil), request("a")},
		"another resource":        {single, request("a")},
		"closed":                  {closed, request("a")},
	} {
		_, err := c.b.Acquire(t.Context(), c.r)
		if err == nil {
			t.Fatalf("%s: granted", what)
		}
		if !errors.Is(err, errors.ErrUnsupported) { // of which nothing is to be undone
			if err := c.b.Undo(t.Context(), c.r); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := len(c.b.outcomes); n != 0 {
			t.Errorf("%s: %d outcomes are kept", what, n)
		}
	}
}

func TestNothingIsUndoneThatWasRefused(t *testing.T) {
	asked := 0
	b := New(client(t, "http://scripted.invalid", "c", func(http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			asked++
			h := http.Header{"X-Ms-Error-Code": {"AuthenticationFailed"}}
			return &http.Response{StatusCode: http.StatusForbidden, Header: h, Body: http.NoBody, Request: r}, nil
		})
	}), nil)
	r := request("a")
	if _, err := b.Acquire(t.Context(), r); err == nil {
		t.Fatal("granted")
	}
	n := asked
	if err := b.Undo(t.Context(), r); err != nil || asked != n {
		t.Errorf("%d requests to undo what a wrong key did: %v", asked-n, err)
	}
}

func TestClearErrors(t *testing.T) {
	t.Parallel()
	e := azurite(t)
	n := 0
	acquire := func(b *Backend) error {
		l := locker(t, b, distlock.Options{})
		n++
		lock, err := l.Acquire(context.Background(), fmt.Sprint(n))
		if err == nil {
			lock.Release()
		}
		if errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("taken for contention: %v", err)
		}
		return err
	}
	says := func(err error, code bloberror.Code, what string) {
		t.Helper()
		if !bloberror.HasCode(err, code) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v; want %s and %q", err, code, what)
		}
	}

	missing := client(t, e.endpoint(), fmt.Sprintf("missing%d", containers.Add(1)), nil)
	says(acquire(New(missing, nil)), bloberror.ContainerNotFound, "Options.CreateContainer")
	if err := acquire(New(missing, &Options{CreateContainer: true})); err != nil {
		t.Errorf("CreateContainer: %v", err)
	}
	if err := acquire(New(missing, nil)); err != nil {
		t.Error(err)
	}

	c := e.container(t)
	wrong, err := container.NewSharedKeyCredential(account, secret)
	if err != nil {
		t.Fatal(err)
	}
	cc, err := container.NewClientWithSharedKeyCredential(c.URL(), wrong, clientOptions(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	err = acquire(New(cc, nil))
	says(err, bloberror.AuthorizationFailure, "credential") // the service says AuthenticationFailed
	if strings.Contains(err.Error(), secret) {
		t.Error(err)
	}

	bySAS := func(p sas.ContainerPermissions) *Backend {
		c, err := container.NewClientWithNoCredential(c.URL()+"?"+containerSAS(t, containerOf(c), p), clientOptions(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		return New(c, nil)
	}
	says(acquire(bySAS(sas.ContainerPermissions{Read: true, List: true})), bloberror.AuthorizationPermissionMismatch, "may not do this")
	if err := acquire(bySAS(sas.ContainerPermissions{Create: true, Write: true})); err != nil {
		t.Errorf("with what the documentation says is enough: %v", err)
	}

	// Another account on the same emulator; on the real service its name would not
	// be found.
	other, err := container.NewSharedKeyCredential("other", accountKey)
	if err != nil {
		t.Fatal(err)
	}
	cc, err = container.NewClientWithSharedKeyCredential("http://"+e.address+"/other/c", other, clientOptions(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := acquire(New(cc, nil)); err == nil || !strings.Contains(err.Error(), "40") {
		t.Errorf("wrong account: %v", err)
	}
	nowhere, err := container.NewClientWithNoCredential("https://no-such-account.invalid/c", clientOptions(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := acquire(New(nowhere, nil)); err == nil || !strings.Contains(err.Error(), "account") && !strings.Contains(err.Error(), "no-such-account") {
		t.Errorf("wrong account: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	c := client(t, "http://127.0.0.1:1", "c", nil)
	for what, b := range map[string]*Backend{
		"no container":     New(nil, nil),
		"no blob":          OnBlob(nil, nil),
		"negative MaxPoll": New(c, &Options{MaxPoll: -1}),
		"tiny MaxPoll":     New(c, &Options{MaxPoll: 5}), // who means seconds
		"fence deleted":    New(c, &Options{Fencing: true, DeleteOnRelease: true}),
		"blob deleted":     OnBlob(c.NewBlobClient("b"), &Options{DeleteOnRelease: true}),
		"blob created":     OnBlob(c.NewBlobClient("b"), &Options{CreateContainer: true}),
	} {
		l := locker(t, b, distlock.Options{})
		if _, err := l.TryAcquire(t.Context(), "a"); !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := New(c, nil)
	for _, mode := range []distlock.AcquireOption{distlock.Shared(), distlock.Upgradeable()} {
		if _, err := locker(t, b, distlock.Options{}).TryAcquire(t.Context(), "a", mode); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v", err)
		}
	}
	for _, lease := range []string{"14s", "61s", "-1s"} {
		r := request("a")
		r.TTL = must(lease)
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("%s: %v", lease, err)
		}
	}
}
