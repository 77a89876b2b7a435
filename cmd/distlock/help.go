package main

import (
	"fmt"
	"strings"
)

const rootHelp = `distlock runs a command while it holds a named lock, so that of all who use the
name, on this host or on many, only one is at work at a time. Where the lock
lives is a URL: lock files on this host, or a store that all hosts share.`

const rootExamples = `  distlock run nightly-report -- ./report.sh
  distlock run --help`

const runExamples = `  # A cron job: if the last one is still at work, skip this one.
  */5 * * * *  distlock run -n sync-invoices -- /usr/local/bin/sync-invoices

  # A deployment: wait for the one before, but not for more than ten minutes.
  distlock run --timeout 10m deploy:web -- ./deploy.sh production

  # At most three at once.
  distlock run --semaphore 3 thumbnails -- convert in.png -resize 200 out.png

  # Many may read the report while nobody rewrites it.
  distlock run --shared report -- rsync report/ backup:report/

  # A lock that several users of this host share: those of the group billing.
  install -d -m 2770 -g billing /var/lib/billing-locks
  distlock run --url 'file:///var/lib/billing-locks?mode=0660' billing:2026-11 -- ./bill.sh

  # Who has it? Say so, and run nothing to speak of.
  distlock run -nv inventory:42 -- true

  # Let the database refuse a write of somebody who lost the lock unawares.
  distlock run price:42 -- sh -c 'psql -c "update stock set price = $(./price 42), token = $DISTLOCK_TOKEN
    where id = 42 and token <= $DISTLOCK_TOKEN"'`

const runIntro = `Run COMMAND while holding the lock RESOURCE, a name of your choice: of all who
run something under that name, only one is at work at a time. The others wait,
for ever unless --timeout or -n says otherwise. The lock is released when COMMAND
exits, however it does. If this program is killed, it comes free as well: at
once, or, where locks are leases, when the lease is over. If the lock is lost
meanwhile (its store is down, somebody broke it), COMMAND is ended: where locks
are leases before anybody else can get it; with lock files, if somebody removes
one, within about 5 s and the time of --kill-after; on MySQL and SQL Server, which
free the locks of a broken connection at once, within about 10 s and that time.

End distlock with SIGTERM, which it passes on, and never with kill -9. On Linux
and FreeBSD that kills COMMAND too, but not what COMMAND has started: the child
of a script works on without the lock. In a script, exec before the last command
makes that one COMMAND itself.

COMMAND has the terminal, standard input, output and error as if it was run
directly, and receives the signals that are sent to distlock. It runs in a
process group of its own. What it leaves behind in the background doesn't keep
the lock.`

// exitCodes are for people; the program has them as constants.
var exitCodes = []struct{ code, meaning string }{
	{"0-255", "that of COMMAND, if it was run; else, and besides:"},
	{"64", "the arguments or the URL are wrong"},
	{"69", "the store can't be reached, fails, or doesn't answer while it is opened"},
	{"75", "not acquired: somebody else holds the resource, or the store, once open,\ngave no answer within --timeout"},
	{"76", "the lock was lost while COMMAND ran; COMMAND was ended"},
	{"126", "COMMAND can't be executed"},
	{"127", "COMMAND was not found"},
	{"128+N", "COMMAND was ended by signal N, or this program while it waited"},
}

var environment = []struct{ name, meaning string }{
	{envURL, "read: the URL, if --url isn't given; without both it is file:, which\nreaches no further than this user on this host. cron, sudo and systemd\ndon't pass on a variable of your shell: set it in the crontab or unit,\nor use --url"},
	{envResource, "set for COMMAND: RESOURCE"},
	{envToken, "set for COMMAND: the fencing token, if the store has them, a number that\ngrows with every holder of RESOURCE: let what COMMAND writes to\nrefuse smaller ones than it has seen"},
}

func runHelp() string {
	var b strings.Builder
	b.WriteString(runIntro)
	row := func(name, text string) {
		fmt.Fprintf(&b, "\n  %-19s %s", name, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 22)))
	}
	b.WriteString("\n\nExit codes:")
	for _, e := range exitCodes {
		row(e.code, e.meaning)
	}
	b.WriteString("\n\nEnvironment:")
	for _, e := range environment {
		row(e.name, e.meaning)
	}
	b.WriteString("\n\nBackends, by URL:")
	for _, e := range backends {
		row(e.url, e.what)
	}
	b.WriteString("\n\nIf several users share a directory, its URL needs ?mode=0660 (or 0666).")
	return b.String()
}
