package filelock

import "crypto/rand"

// randomID stands in for the boot ID where the system has none: as if it had
// been started anew with each process.
func randomID() string { return rand.Text() }
