package azurelock

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/distlock-go/distlock"
)

func TestURL(t *testing.T) {
	for raw, want := range map[string]place{
		"azblob://locks":                         {container: "locks"},
		"azblob://locks/":                        {container: "locks"},
		"azblob://locks?account=acc1&blob=a%2Fb": {container: "locks", account: "acc1", blob: "a/b"},
		"azblob://locks?endpoint=http%3A%2F%2F127.0.0.1%3A10000%2Fdevstoreaccount1": {container: "locks", endpoint: "http://127.0.0.1:10000/devstoreaccount1"},
		"azblob://my-locks-1?max_poll=2s&fencing=true&holder_note=false":            {container: "my-locks-1", o: Options{MaxPoll: 2 * time.Second, Fencing: true}},
		"azblob://locks?delete_on_release=true&create_container=true":               {container: "locks", o: Options{DeleteOnRelease: true, CreateContainer: true}},
		"azblob://locks?holder_note=true":                                           {container: "locks", o: Options{HolderNote: true}},
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseURL(u); err != nil || got != want {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
}

const secret = "c2VjcmV0"

func TestURLErrors(t *testing.T) {
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey="+secret)
	for raw, says := range map[string]string{
		"azblob:":                                  "no container",
		"azblob:locks":                             "no container",
		"azblob://":                                "no container",
		"azblob://Locks":                           "lower-case",
		"azblob://ab":                              "3 to 63",
		"azblob://a--b":                            "single hyphens",
		"azblob://locks:10000":                     "no container can have that name",
		"azblob://locks/blob":                      "blob=NAME",
		"azblob://acc:" + secret + "@locks":        "AZURE_STORAGE_KEY",
		"azblob://locks?sig=" + secret:             `unknown parameter "sig"; the parameters are`,
		"azblob://locks?" + secret + "%3D%3D":      `unknown parameter ""; the parameters are`,
		"azblob://locks?Fencing=true":              `unknown parameter "Fencing"`,
		"azblob://locks?fencing=yes":               "true and false",
		"azblob://locks?fencing=true&fencing=true": "twice",
		"azblob://locks?max_poll=1":                "duration",
		"azblob://locks?max_poll=-1s":              "duration",
		"azblob://locks?account=":                  "empty",
		"azblob://locks?account=a/" + secret:       "account",
		"azblob://locks?endpoint=acc":              "endpoint",
		"azblob://locks?endpoint=https%3A%2F%2Fa%2F%3Fsig%3D" + secret: "without a SAS",
		"azblob://locks#" + secret:                                     "%23",
		"azblob://locks?fencing=true&delete_on_release=true":           "the count would go",
		"azblob://locks?blob=b&delete_on_release=true":                 "neither created nor deleted",
		"azblob://locks?%zz" + secret:                                  "can't be parsed",
	} {
		_, err := distlock.Open(t.Context(), raw, nil)
		if !errors.Is(err, distlock.ErrBadArgument) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v; want %q", raw, err, says)
		}
	}
	u := "azblob://locks?account=acc"
	for _, ttl := range []time.Duration{time.Second, 15*time.Second - 1, time.Minute + 1, time.Hour, -1} {
		if _, err := distlock.Open(t.Context(), u, &distlock.Options{TTL: ttl}); !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("a lease of %v: %v", ttl, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	const (
		conn   = "AZURE_STORAGE_CONNECTION_STRING"
		acc    = "AZURE_STORAGE_ACCOUNT"
		key    = "AZURE_STORAGE_KEY"
		sasVar = "AZURE_STORAGE_SAS_TOKEN"
	)
	good := "AccountName=fromstring;AccountKey=" + secret
	for _, c := range []struct {
		place place
		env   map[string]string
		url   string // of the container; "" is an error
		says  string
	}{
		{place{container: "l"}, map[string]string{conn: good}, "https://fromstring.blob.core.windows.net/l", ""},
		{place{container: "l"}, map[string]string{conn: "BlobEndpoint=http://127.0.0.1:1/x;SharedAccessSignature=sv=1&sig=" + secret}, "http://127.0.0.1:1/x/l", ""},
		{place{container: "l"}, map[string]string{conn: "nonsense " + secret}, "", conn},
		{place{container: "l"}, map[string]string{conn: "AccountName=a;AccountKey=!" + secret}, "", conn},
		{place{container: "l", account: "acc"}, map[string]string{conn: good, key: secret}, "https://acc.blob.core.windows.net/l", ""},
		{place{container: "l"}, map[string]string{acc: "acc", key: secret}, "https://acc.blob.core.windows.net/l", ""},
		{place{container: "l"}, map[string]string{acc: "acc", sasVar: "?sv=1&sig=" + secret}, "https://acc.blob.core.windows.net/l", ""},
		{place{container: "l", endpoint: "https://x.example/"}, map[string]string{sasVar: "sv=1&sig=" + secret}, "https://x.example/l", ""},
		{place{container: "l", account: "acc"}, nil, "https://acc.blob.core.windows.net/l", ""}, // DefaultAzureCredential
		{place{container: "l"}, nil, "", "no account"},
		{place{container: "l"}, map[string]string{acc: "acc", key: secret, sasVar: "sig=" + secret}, "", "which one"},
		{place{container: "l"}, map[string]string{acc: "acc", key: "!" + secret}, "", "Base64"},
		{place{container: "l", endpoint: "https://x"}, map[string]string{key: secret}, "", "of which account"},
		{place{container: "l", account: "acc"}, map[string]string{sasVar: "https://acc.blob.core.windows.net/l?se=1&sv=1&sig=" + secret}, "", "question mark"},
		{place{container: "l", account: "acc"}, map[string]string{sasVar: `"se=1&sv=1&sig=` + secret + `"`}, "", "without quotes"},
		{place{container: "l", account: "acc"}, map[string]string{sasVar: "sv=1&sig=" + secret + "\n"}, "", "line ends"},
		{place{container: "l", account: "acc"}, map[string]string{sasVar: secret}, "", "no SAS"},
		{place{container: "l", endpoint: "http://x"}, map[string]string{conn: good}, "", "CONNECTION_STRING isn't used"},
		{place{container: "l", endpoint: "http://x"}, nil, "", "https"},
	} {
		got, err := c.place.client(func(name string) string { return c.env[name] }, clientOptions(t, nil))
		switch {
		case c.url == "":
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v: %v; want %q", c.env, err, c.says)
			}
		case err != nil:
			t.Errorf("%v: %v", c.env, err)
		default:
			if u, _, _ := strings.Cut(got.URL(), "?"); u != c.url {
				t.Errorf("%v: %s, want %s", c.env, u, c.url)
			}
		}
	}
}

// The whole way, from a URL and the environment to a lock.
func TestOpen(t *testing.T) {
	e := azurite(t)
	name := containerOf(e.container(t))
	open := func(query string) *distlock.Locker {
		l, err := distlock.Open(t.Context(), "azblob://"+name+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName="+account+";AccountKey="+accountKey+";BlobEndpoint="+e.endpoint())
	byString := open("")
	t.Setenv("AZURE_STORAGE_KEY", accountKey)
	byKey := open("?fencing=true&account=" + account + "&endpoint=" + url.QueryEscape(e.endpoint()))
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", containerSAS(t, name, sas.ContainerPermissions{Read: true, Create: true, Write: true}))
	bySAS := open("?endpoint=" + url.QueryEscape(e.endpoint()))
	for i, l := range []*distlock.Locker{byString, byKey, bySAS} {
		lock, err := l.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := lock.Token(); ok != (l == byKey) {
			t.Errorf("%d: token: %t", i, ok)
		}
		for _, other := range []*distlock.Locker{byString, byKey, bySAS} {
			_, err := other.TryAcquire(t.Context(), "a")
			for err != nil && strings.Contains(err.Error(), "did not answer in time") {
				_, err = other.TryAcquire(t.Context(), "a")
			}
			if !errors.Is(err, distlock.ErrNotAcquired) {
				t.Errorf("while another has it: %v", err)
			}
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
}

// Without a key or SAS it is DefaultAzureCredential that is asked: here a managed
// identity, whose endpoint the environment names.
func TestDefaultCredential(t *testing.T) {
	var asked []string
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Authorization"))
		w.Header().Set("x-ms-lease-id", leaseID(r))
		w.WriteHeader(http.StatusCreated)
	}))
	defer service.Close()
	var identified int
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identified++
		if r.Header.Get("X-IDENTITY-HEADER") != "header" || r.URL.Query().Get("resource") != "https://storage.azure.com" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"access_token": "the-token", "expires_on": "%d", "resource": "https://storage.azure.com", "token_type": "Bearer"}`, time.Now().Add(time.Hour).Unix())
	}))
	defer identity.Close()
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_USERNAME"} {
		t.Setenv(name, "") // to have it back afterwards
		os.Unsetenv(name)
	}
	t.Setenv("IDENTITY_ENDPOINT", identity.URL)
	t.Setenv("IDENTITY_HEADER", "header")
	try := func() error {
		p := place{container: "locks", endpoint: service.URL}
		c, err := p.client(func(string) string { return "" }, &container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: service.Client()}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(c, nil).Acquire(t.Context(), request("a"))
		return err
	}

	// Each failure says why it came to that, and what was tried.
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
	t.Setenv("IDENTITY_HEADER", "wrong")
	err := try()
	if err == nil || !strings.HasPrefix(err.Error(), "neither AZURE_STORAGE_KEY nor AZURE_STORAGE_SAS_TOKEN is set, and ") || !strings.Contains(err.Error(), "ManagedIdentityCredential") {
		t.Errorf("a managed identity that refuses: %v", err)
	}
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
	err = try()
	if err == nil || !strings.HasPrefix(err.Error(), "neither AZURE_STORAGE_KEY nor AZURE_STORAGE_SAS_TOKEN is set, and ") || !strings.Contains(err.Error(), "AZURE_TENANT_ID") || strings.Contains(err.Error(), "\n") {
		t.Errorf("nothing in the environment: %v", err)
	}
	if identified != 1 {
		t.Errorf("the managed identity was asked %d times, which takes time", identified)
	}
	if len(asked) > 0 {
		t.Errorf("the service was asked without a token: %q", asked)
	}

	t.Setenv("IDENTITY_HEADER", "header")
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
	if err := try(); err != nil {
		t.Error(err)
	}
	if want := []string{"Bearer the-token", "Bearer the-token"}; !slices.Equal(asked, want) {
		t.Errorf("the service got %q, want %q", asked, want)
	}
}

func containerSAS(t testing.TB, name string, p sas.ContainerPermissions) string {
	t.Helper()
	cred, err := sharedKey()
	if err != nil {
		t.Fatal(err)
	}
	q, err := sas.BlobSignatureValues{
		ContainerName: name, Permissions: p.String(), Protocol: sas.ProtocolHTTPSandHTTP,
		StartTime: time.Now().Add(-time.Hour), ExpiryTime: time.Now().Add(time.Hour),
	}.SignWithSharedKey(cred)
	if err != nil {
		t.Fatal(err)
	}
	return q.Encode()
}

// No error of the transport, which prints the URL, shows the signature.
func TestSignatureIsNeverShown(t *testing.T) {
	token := "sv=2024-01-01&sp=rcw&sig=" + secret + "%2B"
	p := place{container: "locks", endpoint: "http://127.0.0.1:1/acc"}
	c, err := p.client(func(name string) string {
		return map[string]string{"AZURE_STORAGE_SAS_TOKEN": token}[name]
	}, clientOptions(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	l := distlock.New(New(c, nil), nil)
	defer l.Close()
	_, err = l.TryAcquire(t.Context(), "a")
	var u *url.Error
	if err == nil || strings.Contains(err.Error(), secret) || !errors.As(err, &u) || strings.Contains(u.Error(), secret) {
		t.Errorf("%v", err)
	}
	if _, err := l.Holders(t.Context(), "a"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"https://x/y?sig=" + secret, "AccountKey=" + secret + ";x", "SharedAccessSignature=" + secret} {
		if got := explain(errors.New(text)).Error(); strings.Contains(got, secret) {
			t.Error(got)
		}
	}
	broken := client(t, "http://127.0.0.1:1", "c", func(http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			return nil, errors.New("proxy says no to " + r.URL.String() + "&sig=" + secret)
		})
	})
	if _, err := distlock.New(New(broken, nil), nil).TryAcquire(t.Context(), "a"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
}
