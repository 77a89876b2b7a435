//go:build race

package drivertest

// raceDetector says that everything takes several times as long.
const raceDetector = true
