package azurelock

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

// How other processes find what to do.
const (
	roleEnv     = "AZURELOCK_TEST_ROLE" // "": what the suite says
	endpointEnv = "AZURELOCK_TEST_ENDPOINT"
	nameEnv     = "AZURELOCK_TEST_CONTAINER"
	fencingEnv  = "AZURELOCK_TEST_FENCING"
)

// openFromEnv opens the backend that another process is to use.
func openFromEnv() (driver.Backend, error) {
	cred, err := sharedKey()
	if err != nil {
		return nil, err
	}
	c, err := container.NewClientWithSharedKeyCredential(os.Getenv(endpointEnv)+"/"+os.Getenv(nameEnv), cred, nil)
	if err != nil {
		return nil, err
	}
	return New(c, &Options{Fencing: os.Getenv(fencingEnv) != ""}), nil
}

// The test binary runs itself as other processes, each in one of these roles.
var roles = map[string]func() error{}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Println(err)
		}
		return
	}
	if os.Getenv(endpointEnv) != "" { // a process of the suite
		drivertest.Main(m, openFromEnv)
	}
	flag.Parse()
	// The conformance suites, and those that wait until a real lease has run out, wait
	// most of the time: the number of processors is no measure for how many may run at
	// once. The others are to be through with the emulator before their leases end.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Println(err)
	}
	m.Run() // its result is the program's when this returns
	if shared.e != nil {
		shared.e.stop()
	}
}
