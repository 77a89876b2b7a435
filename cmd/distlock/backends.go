package main

import (
	_ "github.com/distlock-go/distlock/azurelock"
	_ "github.com/distlock-go/distlock/filelock"
	_ "github.com/distlock-go/distlock/locallock"
	_ "github.com/distlock-go/distlock/mssqllock"
	_ "github.com/distlock-go/distlock/mssqllock/azuread"
	_ "github.com/distlock-go/distlock/mysqllock"
)

// backends are the URLs of the backends that are linked in, for help and
// completion.
var backends = []struct{ url, what string }{
	{"file:", "lock files of this user on this host; the default"},
	{"file:///var/locks", "lock files in a directory, for all who may write there"},
	{"mysql://user@host/db", "user locks of a MySQL or MariaDB server, for all its clients"},
	{"mariadb://user@host/db", "the same"},
	{"sqlserver://user@host?database=db", "application locks in a database of a SQL Server or in Azure SQL"},
	{"azblob://container?account=name", "leases on blobs in Azure Storage, for all hosts; secrets in AZURE_STORAGE_*"},
	{"local:", "inside this process only: to try things out"},
}
