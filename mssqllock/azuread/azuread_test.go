package azuread

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock"
)

// A URL with fedauth leads to the server with this package, and what the driver says is
// wrong with it is told before any I/O.
func TestFedauth(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there
	const id = "00000000-0000-0000-0000-000000000000"
	for _, c := range []struct {
		user, parameters string
		bad              bool
	}{
		{"", "fedauth=ActiveDirectoryDefault", false},
		{"", "fedauth=ActiveDirectoryManagedIdentity", false},
		{id + "@", "fedauth=ActiveDirectoryManagedIdentity&resource+id=x", false},
		{id + "%40tenant:s3cret@", "fedauth=ActiveDirectoryServicePrincipal&database=app&prefix=x:", false},
		{id + "@", "fedauth=ActiveDirectoryWorkloadIdentity&tokenfilepath=/var/run/token", false},
		{"u:s3cret@", "fedauth=ActiveDirectoryPassword&applicationclientid=" + id, false},
		{":s3cret@", "fedauth=ActiveDirectoryServicePrincipal", true},
		{"u:s3cret@", "fedauth=ActiveDirectoryPassword", true},
		{"u:s3cret@", "fedauth=nonsense", true},
	} {
		b, err := mssqllock.Open(t.Context(), "sqlserver://"+c.user+l.Addr().String()+"?"+c.parameters)
		if err == nil {
			b.Close()
			t.Fatalf("%s: connected", c.parameters)
		}
		var dialing *net.OpError
		if errors.Is(err, distlock.ErrBadArgument) != c.bad || errors.As(err, &dialing) == c.bad || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", c.parameters, err)
		}
	}
}
