package filelock

import (
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

func TestMain(m *testing.M) { drivertest.Main(m, openForSuite) }

var sever func(testing.TB, driver.Backend, driver.Request, driver.Grant)
