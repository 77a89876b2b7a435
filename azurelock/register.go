package azurelock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func init() {
	distlock.Register("azblob", func(_ context.Context, u *url.URL) (driver.Backend, error) {
		t, err := parseURL(u)
		if err != nil {
			return nil, badArgument("%w", err)
		}
		c, err := t.client(os.Getenv, &container.ClientOptions{})
		if err != nil {
			return nil, badArgument("%w", err)
		}
		b := New(c, &t.o)
		if t.blob != "" {
			b = OnBlob(c.NewBlobClient(t.blob), &t.o)
		}
		if b.bad != nil {
			return nil, b.bad
		}
		return b, nil
	})
}

// place is what a URL stands for.
type place struct {
	container string
	account   string
	endpoint  string
	blob      string
	o         Options
}

// https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
var (
	containerName = regexp.MustCompile(`^[a-z0-9](-?[a-z0-9])+$`)
	accountName   = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	plainWord     = regexp.MustCompile(`^[A-Za-z_-]{1,24}$`)
)

// parseURL returns what the URL stands for. Its errors quote nothing that may be
// a secret in the wrong place.
func parseURL(u *url.URL) (p place, err error) {
	const form = "the form is azblob://container?account=NAME"
	switch {
	case u.User != nil:
		return p, errors.New("a user or key in the URL: secrets come from the environment (AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_KEY); " + form)
	case u.Opaque != "" || u.Host == "":
		return p, errors.New("no container: " + form)
	case u.Path != "" && u.Path != "/":
		return p, errors.New("a path: a single blob is given as blob=NAME; " + form)
	case u.Fragment != "":
		return p, errors.New("a # in the URL: write it %23; " + form)
	case len(u.Host) < 3 || len(u.Host) > 63 || !containerName.MatchString(u.Host):
		return p, errors.New("no container can have that name: 3 to 63 lower-case letters, digits and single hyphens; " + form)
	}
	p.container = u.Host
	const parameters = "the parameters are account, endpoint, blob, max_poll=DURATION, and fencing, holder_note, delete_on_release and create_container (true or false)"
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return p, errors.New("the query can't be parsed; " + parameters)
	}
	for key, values := range query {
		flag := map[string]*bool{
			"fencing": &p.o.Fencing, "holder_note": &p.o.HolderNote,
			"delete_on_release": &p.o.DeleteOnRelease, "create_container": &p.o.CreateContainer,
		}[key]
		text := map[string]*string{"account": &p.account, "endpoint": &p.endpoint, "blob": &p.blob}[key]
		value := values[0]
		switch {
		case flag == nil && text == nil && key != "max_poll":
			if !plainWord.MatchString(key) {
				key = "" // a key or SAS, pasted there
			}
			return p, errors.New("unknown parameter " + strconv.Quote(key) + "; " + parameters)
		case len(values) > 1:
			return p, errors.New("parameter " + key + " is there twice")
		case value == "":
			return p, errors.New("parameter " + key + " is empty")
		case flag != nil:
			switch value {
			case "true":
				*flag = true
			case "false":
			default:
				return p, errors.New("parameter " + key + ": the values are true and false")
			}
		case text != nil:
			*text = value
		default:
			if p.o.MaxPoll, err = time.ParseDuration(value); err != nil || p.o.MaxPoll <= 0 {
				return p, errors.New("parameter max_poll: a duration like 1s or 500ms")
			}
		}
	}
	if p.account != "" && !accountName.MatchString(p.account) {
		return p, errors.New("parameter account: no account can have that name: 3 to 24 lower-case letters and digits")
	}
	if p.endpoint != "" {
		e, err := url.Parse(p.endpoint)
		if err != nil || e.Host == "" || e.Scheme != "https" && e.Scheme != "http" || e.User != nil || e.RawQuery != "" || e.Fragment != "" {
			return p, errors.New("parameter endpoint: the URL of a blob service, like https://NAME.blob.core.windows.net, without a SAS")
		}
	}
	return p, nil
}

// client returns a client with the credential that the environment has.
func (p *place) client(env func(string) string, o *container.ClientOptions) (*container.Client, error) {
	o.Retry = noRetries
	if s := env("AZURE_STORAGE_CONNECTION_STRING"); s != "" && p.account == "" && p.endpoint == "" {
		c, err := container.NewClientFromConnectionString(s, p.container, o)
		if err == nil {
			_, err = url.Parse(c.URL())
		}
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_CONNECTION_STRING can't be used: it needs AccountName or BlobEndpoint, and AccountKey (Base64) or SharedAccessSignature")
		}
		return c, nil
	}
	account, endpoint := p.account, p.endpoint
	if account == "" {
		account = env("AZURE_STORAGE_ACCOUNT")
	}
	key, sas := env("AZURE_STORAGE_KEY"), strings.TrimPrefix(env("AZURE_STORAGE_SAS_TOKEN"), "?")
	switch {
	case account == "" && endpoint == "":
		return nil, errors.New("no account: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT, or give account=NAME in the URL")
	case key != "" && sas != "":
		return nil, errors.New("both AZURE_STORAGE_KEY and AZURE_STORAGE_SAS_TOKEN are set: which one?")
	case key != "" && account == "":
		return nil, errors.New("AZURE_STORAGE_KEY is set, but not of which account: set AZURE_STORAGE_ACCOUNT, or give account=NAME in the URL")
	}
	if endpoint == "" {
		endpoint = "https://" + account + ".blob.core.windows.net"
	}
	target := strings.TrimSuffix(endpoint, "/") + "/" + p.container
	switch {
	case key != "":
		cred, err := container.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_KEY is not Base64")
		}
		return container.NewClientWithSharedKeyCredential(target, cred, o)
	case sas != "":
		// The service would only say 403 to one that is quoted, or a whole URL.
		target += "?" + sas
		q, err := url.ParseQuery(sas)
		if _, bad := url.Parse(target); err != nil || bad != nil || q.Get("sig") == "" || q.Get("sv") == "" || strings.ContainsAny(sas, "?\"' \t\r\n") {
			return nil, errors.New("AZURE_STORAGE_SAS_TOKEN is no SAS: it is what follows the question mark in a SAS URL, sv=… and sig=… among it, without quotes or line ends")
		}
		return container.NewClientWithNoCredential(target, o)
	}
	why := "neither AZURE_STORAGE_KEY nor AZURE_STORAGE_SAS_TOKEN is set"
	if env("AZURE_STORAGE_CONNECTION_STRING") != "" {
		why += ", AZURE_STORAGE_CONNECTION_STRING isn't used if the URL has account or endpoint"
	}
	if strings.HasPrefix(endpoint, "http:") {
		return nil, errors.New(why + ", and other credentials need an endpoint with https")
	}
	cred, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return container.NewClient(target, &lastResort{cred, why}, o)
}

// lastResort is a credential that says, if it fails, why it was asked.
type lastResort struct {
	azcore.TokenCredential
	why string
}

// tokenTime is how long it may take: longer than a first try, as there may be
// several things to ask, and less than what package distlock gives to an Acquire
// that doesn't wait, so that it is said what was slow.
const tokenTime = 4500 * time.Millisecond

func (c *lastResort) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	q, ok := ctx.Value(questionKey{}).(*question)
	if ok {
		ctx = q.caller
	}
	asking, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	t, err := c.TokenCredential.GetToken(asking, o)
	if err == nil || ctx.Err() != nil {
		return t, err
	}
	err = fmt.Errorf("%s, and %w", c.why, err)
	if asking.Err() != nil {
		err = fmt.Errorf("%s, and no other credential answered within %v", c.why, tokenTime)
	}
	if ok {
		q.noToken.Store(&err)
	}
	return t, err
}
