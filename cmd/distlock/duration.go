package main

import (
	"errors"
	"strconv"
	"time"
)

// duration is the value of a flag that takes a time that isn't negative.
type duration time.Duration

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if _, number := strconv.ParseFloat(s, 64); err != nil && number == nil {
		return errors.New("a unit is missing: is it " + s + "s?")
	}
	if err != nil {
		return errors.New("not a duration such as 500ms, 30s, 5m or 1h30m")
	}
	if v < 0 {
		return errors.New("it is negative")
	}
	*d = duration(v)
	return nil
}

// givenDuration is a duration that is known as it was given, too.
type givenDuration struct {
	*duration
	text string
}

// Set implements pflag.Value.
func (g *givenDuration) Set(s string) error {
	g.text = s
	return g.duration.Set(s)
}

// Type implements pflag.Value.
func (d *duration) Type() string { return "D" }

// String implements pflag.Value. It is for the default in the help, which is
// said there in words.
func (d *duration) String() string { return "" }
