package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// describe words who holds a resource.
func describe(holders []driver.Holder, now time.Time) string {
	if len(holders) == 0 {
		return "held by somebody else" // or not any more
	}
	const most = 3
	var parts []string
	for _, h := range holders[:min(most, len(holders))] {
		parts = append(parts, describeHolder(h, now))
	}
	if more := len(holders) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return "held by " + strings.Join(parts, "; by ")
}

// describeHolder words who one holder is, for example
//
//	host web-1, pid 4711 (distlock run backup.sh), exclusive, since 12:03:04 (3m12s ago)
func describeHolder(h driver.Holder, now time.Time) string {
	var parts []string
	if h.Owner.Host != "" {
		parts = append(parts, "host "+h.Owner.Host)
	}
	who := strings.TrimSpace(h.Owner.Program + " " + h.Owner.Note)
	switch {
	case h.Owner.PID != 0 && who != "":
		parts = append(parts, fmt.Sprintf("pid %d (%s)", h.Owner.PID, who))
	case h.Owner.PID != 0:
		parts = append(parts, fmt.Sprintf("pid %d", h.Owner.PID))
	case who != "":
		parts = append(parts, who)
	}
	if len(parts) == 0 {
		parts = append(parts, "somebody else")
	}
	parts = append(parts, h.Mode.String())
	if !h.Since.IsZero() {
		layout := time.TimeOnly
		if now.Sub(h.Since) >= 24*time.Hour {
			layout = time.DateTime
		}
		ago := max(0, now.Sub(h.Since)).Round(time.Second)
		parts = append(parts, fmt.Sprintf("since %s (%v ago)", h.Since.Local().Format(layout), ago))
	}
	return strings.Join(parts, ", ")
}
