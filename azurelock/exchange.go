package azurelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/distlock-go/distlock/driver"
)

// tries are how long a request may take, at the first try and at those that
// follow. The first is short: it may go out on a connection that some gateway has
// dropped long ago.
type tries []time.Duration

var (
	// Package distlock gives a release five seconds, by default.
	releaseTries = tries{1500 * time.Millisecond, 3 * time.Second, 6 * time.Second}

	// An acquire may be repeated, as it has its lease ID; so may reads, and writes
	// that have a condition.
	acquireTries = tries{3 * time.Second, 12 * time.Second}

	// Renewals are repeated by package distlock, which knows how long it makes
	// sense.
	renewTries = tries{maxTTL}
)

// grace is how long a question is still given to be answered when nobody waits
// for it any more.
const grace = 500 * time.Millisecond

// noRetries keeps the SDK from retrying, whatever its client was told: it would
// go on for minutes, and not say which of its tries got no answer.
var noRetries = policy.RetryOptions{MaxRetries: -1}

// exchange calls f, which sends one request, until it is answered or the tries
// are used up. The doubt is that of all tries but an answered last one.
func exchange(ctx context.Context, n tries, f func(ctx context.Context) error) (doubt, error) {
	var before doubt
	for i := 0; ; i++ {
		if ctx.Err() != nil {
			return before, ctx.Err()
		}
		q := &question{caller: ctx}
		try, cancel := context.WithTimeout(q.context(), n[i])
		err := f(try)
		if why := q.noToken.Load(); why != nil && err != nil {
			err = &tokenError{*why} // the SDK may make of it that its time was over
		}
		if err != nil && try.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = &noAnswerError{n[i], q.asked()}
		}
		cancel()
		if err == nil {
			return before, nil
		}
		now := doubtOf(err)
		if ctx.Err() != nil || i == len(n)-1 || !transient(err) {
			return before.and(now), err
		}
		before = before.and(now)
		// The next try is what notices that the context ended.
		_ = sleep(ctx, 100*time.Millisecond+rand.N(100*time.Millisecond))
	}
}

// question is one try. It is known to what is below the SDK by its context.
type question struct {
	caller  context.Context       // of all tries
	noToken atomic.Pointer[error] // what the credential of the environment said
	host    atomic.Pointer[string]
}

type questionKey struct{}

func (q *question) context() context.Context {
	ctx := context.WithValue(policy.WithRetryOptions(q.caller, noRetries), questionKey{}, q)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(host string) { q.host.Store(&host) }})
}

// asked tells who was asked last: the service, or one that gives tokens for it.
func (q *question) asked() string {
	if host := q.host.Load(); host != nil {
		return *host
	}
	return "the blob service, or the credential"
}

// tokenError is that of a credential.
type tokenError struct{ error }

func (e *tokenError) Unwrap() error { return e.error }

// NonRetriable tells what kind of error it is, as the SDK's do.
func (e *tokenError) NonRetriable() {}

// noAnswerError is not the context's error: the caller's time isn't over.
type noAnswerError struct {
	after time.Duration
	from  string
}

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("no answer within %v from %s", e.after, e.from)
}

// notOursError is a success that isn't that of a request of ours, or of none that
// the service has seen.
type notOursError struct{ got *string }

func (e *notOursError) Error() string {
	got := "no lease ID"
	if e.got != nil {
		got = "another lease ID"
	}
	return "the answer about a lease has " + got + ": is something between that answers by itself?"
}

// checkID returns an error if the answer about a lease is about none, or another.
func checkID(got *string, want driver.ID) error {
	if got == nil || !strings.EqualFold(*got, want.String()) {
		return &notOursError{got}
	}
	return nil
}

// doubtOf returns what an error leaves open.
func doubtOf(err error) doubt {
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok {
		switch r.StatusCode {
		case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusGatewayTimeout:
			return silent // that may have been said by somebody in between
		}
		if bloberror.HasCode(err, bloberror.OperationTimedOut) {
			return silent
		}
		if r.StatusCode >= 500 && r.StatusCode != http.StatusServiceUnavailable {
			return answered
		}
		return none
	}
	if o, ok := errors.AsType[*net.OpError](err); ok && o.Op == "dial" {
		return none
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return none
	}
	if _, ok := errors.AsType[nonRetriable](err); ok {
		return none // no token could be had
	}
	return silent
}

// nonRetriable is what the SDK's errors are that come of the credential or the
// arguments.
type nonRetriable interface {
	error
	NonRetriable()
}

// transient reports whether another try may have another result.
func transient(err error) bool {
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return slices.Contains([]int{
			http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
		}, r.StatusCode)
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok && d.IsNotFound {
		return false
	}
	if _, ok := errors.AsType[nonRetriable](err); ok {
		return false
	}
	if _, ok := errors.AsType[*noAnswerError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// patient returns a context that ends some time after ctx.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return asking, func() {
		stop()
		cancel()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What the service's error codes mean; see
// https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
// and the tables of outcomes on the page of Lease Blob.

// meansHeld: somebody else has the lease, or had it and it is being broken.
func meansHeld(err error) bool {
	return bloberror.HasCode(err, bloberror.LeaseAlreadyPresent, bloberror.LeaseIsBreakingAndCannotBeAcquired)
}

// meansGone: there is no lease with the ID. It may have been released, broken,
// changed or taken over, or what it was on is no more.
func meansGone(err error) bool {
	return bloberror.HasCode(err,
		bloberror.LeaseIDMismatchWithLeaseOperation, bloberror.LeaseNotPresentWithLeaseOperation,
		bloberror.LeaseIDMismatchWithBlobOperation, bloberror.LeaseNotPresentWithBlobOperation,
		bloberror.LeaseIsBrokenAndCannotBeRenewed, bloberror.LeaseLost,
		bloberror.BlobNotFound, bloberror.ContainerNotFound, bloberror.ContainerBeingDeleted,
	)
}

// forbidden: the credential was accepted, but lacks a right.
func forbidden(err error) bool {
	r, ok := errors.AsType[*azcore.ResponseError](err)
	return ok && r.StatusCode == http.StatusForbidden && r.ErrorCode != string(bloberror.AuthenticationFailed)
}

// advice is what to say to the user, by code.
var advice = map[bloberror.Code]string{
	bloberror.ContainerNotFound:                 "the container doesn't exist: create it, or set Options.CreateContainer (create_container=true in the URL)",
	bloberror.ContainerBeingDeleted:             "the container is being deleted: it can be created again in half a minute or more",
	bloberror.ContainerDisabled:                 "the container is disabled",
	bloberror.BlobNotFound:                      "the blob doesn't exist, and isn't this backend's to create",
	bloberror.ResourceNotFound:                  "there is nothing at this address: are account, endpoint and container right?",
	bloberror.AccountIsDisabled:                 "the storage account is disabled",
	bloberror.AuthenticationFailed:              "the service doesn't accept the credential: is it for this account, has the SAS expired, is this host's clock right?",
	bloberror.InvalidAuthenticationInfo:         "the service doesn't accept the credential: is it for this account and tenant?",
	bloberror.NoAuthenticationInformation:       "the request has no credential",
	bloberror.AuthorizationFailure:              "the credential may not do this, or not from here: see the rights in the package documentation, and the account's network rules",
	bloberror.AuthorizationPermissionMismatch:   "the credential may not do this: see the rights in the package documentation",
	bloberror.InsufficientAccountPermissions:    "the credential may not do this: see the rights in the package documentation",
	bloberror.UnauthorizedBlobOverwrite:         "the credential may not write to blobs that exist: leases need that",
	bloberror.AuthorizationResourceTypeMismatch: "the SAS is not for blobs (resource type o), or, to create the container, not for containers (c)",
	bloberror.AuthorizationServiceMismatch:      "the SAS is not for the blob service",
	bloberror.AuthorizationSourceIPMismatch:     "the SAS doesn't allow requests from this address",
	bloberror.AuthorizationProtocolMismatch:     "the SAS needs https",
	bloberror.ResourceTypeMismatch:              "there is a directory of that name: resources can't be named like directories in accounts with a hierarchical namespace",
	bloberror.BlobImmutableDueToPolicy:          "an immutability policy forbids it",
	bloberror.LeaseIDMissing:                    "somebody has a lease on a blob that only counts, which nobody should: break the lease",
	bloberror.MetadataTooLarge:                  "the blob's metadata leave no room for a token or note",
	bloberror.InvalidResourceName:               "the service doesn't take the name",
	bloberror.ServerBusy:                        "the service is busy, or throttles the account",
}

// explain words an error of the SDK. Theirs are of many lines and print URLs, the
// signature of a SAS included.
func explain(err error) error {
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok {
		text := advice[bloberror.Code(r.ErrorCode)]
		if text == "" {
			text = "the blob service refused"
		}
		code := r.ErrorCode
		if code == "" {
			text = "the answer has no code of the blob service's: is something else at the endpoint, or in between?"
			code = http.StatusText(r.StatusCode)
		}
		return &wrapped{fmt.Sprintf("%s (%d %s%s)", text, r.StatusCode, code, asked(r)), r}
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		clean := &url.Error{Op: u.Op, URL: redactURL(u.URL), Err: u.Err}
		if text := redact(u.Err.Error()); text != u.Err.Error() {
			clean.Err = errors.New(text)
		}
		if d, ok := errors.AsType[*net.DNSError](err); ok && d.IsNotFound {
			return &wrapped{clean.Error() + ": is the account's name right?", clean}
		}
		return clean
	}
	text := err.Error()
	switch line := oneLine(redact(text)); {
	case redact(text) != text:
		return errors.New(line)
	case line != text:
		return &wrapped{line, err}
	}
	return err
}

// asked says what the service was asked.
func asked(r *azcore.ResponseError) string {
	if r.RawResponse == nil || r.RawResponse.Request == nil || r.RawResponse.Request.URL == nil {
		return ""
	}
	q := r.RawResponse.Request
	return ", " + q.Method + " " + (&url.URL{Scheme: q.URL.Scheme, Host: q.URL.Host, Path: q.URL.Path, RawPath: q.URL.RawPath}).String()
}

// oneLine makes one of many, and leaves out the ruled ones.
func oneLine(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Trim(line, "-") != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// lost words an error that means that a lease has ended.
func lost(err error) error {
	why := "the lease was taken over, changed or ended by somebody else"
	switch {
	case bloberror.HasCode(err, bloberror.LeaseIsBrokenAndCannotBeRenewed):
		why = "the lease was broken"
	case bloberror.HasCode(err, bloberror.BlobNotFound):
		why = "the blob was deleted"
	case bloberror.HasCode(err, bloberror.ContainerNotFound, bloberror.ContainerBeingDeleted):
		why = "the container was deleted"
	}
	text := why
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok {
		text = fmt.Sprintf("%s (%d %s)", why, r.StatusCode, r.ErrorCode)
		err = r
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, &wrapped{text, err})
}

// wrapped is an error with a text of its own.
type wrapped struct {
	text  string
	cause error
}

func (w *wrapped) Error() string { return w.text }
func (w *wrapped) Unwrap() error { return w.cause }

var secrets = regexp.MustCompile(`(?i)\b(sig|AccountKey|SharedAccessSignature)=[^&;\s"']*`)

func redact(s string) string {
	return secrets.ReplaceAllStringFunc(s, func(m string) string {
		key, _, _ := strings.Cut(m, "=")
		return key + "=REDACTED"
	})
}
