module github.com/distlock-go/distlock/cmd/distlock

go 1.26.0

require (
	github.com/creack/pty v1.1.24
	github.com/distlock-go/distlock v0.0.0
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.50.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
)

replace github.com/distlock-go/distlock => ../..
