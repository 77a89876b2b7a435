// Package azuread lets sqlserver URLs of package mssqllock log in with Microsoft
// Entra ID (Azure Active Directory). Import it for that, and nothing else:
//
//	import _ "github.com/distlock-go/distlock/mssqllock/azuread"
//
// The URL's parameter fedauth then names the way, as go-mssqldb's package azuread
// has it: fedauth=ActiveDirectoryDefault, ActiveDirectoryManagedIdentity,
// ActiveDirectoryServicePrincipal and so on, with the parameters that belong to
// each. It is a package of its own because it links the Azure SDK.
package azuread

import (
	"github.com/microsoft/go-mssqldb/azuread"

	"github.com/distlock-go/distlock/mssqllock/internal/fedauth"
)

func init() { fedauth.NewConnector = azuread.NewConnector }
