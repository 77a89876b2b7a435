// Package fedauth is where package azuread leaves what it can do, so that those
// who don't import it don't link the Azure SDK.
package fedauth

import mssql "github.com/microsoft/go-mssqldb"

// NewConnector makes a connector of a URL with the parameter fedauth. It is nil
// if package azuread isn't linked.
var NewConnector func(dsn string) (*mssql.Connector, error)
