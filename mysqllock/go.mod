module github.com/distlock-go/distlock/mysqllock

go 1.26.0

require (
	github.com/distlock-go/distlock v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/distlock-go/distlock => ../
