package filelock

import "sync"

// bootID tells one run of the system from the next.
var bootID = sync.OnceValue(randomID)
