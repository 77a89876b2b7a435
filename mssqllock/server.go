package mssqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock-go/distlock/internal/dbsession"
)

// server is what is known of the one that was connected to.
type server struct {
	edition  int64  // SERVERPROPERTY('EngineEdition')
	version  string // SERVERPROPERTY('ProductVersion')
	database string
	updates  string // DATABASEPROPERTYEX(DB_NAME(), 'Updateability')
	trans    int64  // @@TRANCOUNT
}

// known returns the server that was seen last.
func (d *dialect) known() server {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return server{}
	}
	return *d.server
}

// Editions that aren't a SQL Server of one's own.
// https://learn.microsoft.com/sql/t-sql/functions/serverproperty-transact-sql
const (
	editionAzure     = 5
	editionSynapse   = 6
	editionManaged   = 8
	editionEdge      = 9
	editionServerles = 11
	editionFabric    = 12
)

// oldest is the major version of SQL Server 2016.
const oldest = 13

// about asks what is to be judged. Properties have the type sql_variant.
const about = "SELECT @@SPID,CAST(SERVERPROPERTY('EngineEdition') AS int),CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128))," +
	"DB_NAME(),CAST(DATABASEPROPERTYEX(DB_NAME(),'Updateability') AS nvarchar(60)),@@TRANCOUNT"

// read takes what about has answered.
func read(row []sqldriver.Value) (spid int64, s *server, err error) {
	s = &server{version: dbsession.Text(row[2]), database: dbsession.Text(row[3]), updates: dbsession.Text(row[4])}
	var id, edition, trans dbsession.Step
	err = errors.Join(id.Set(row[0]), edition.Set(row[1]), trans.Set(row[5]))
	s.edition, s.trans = edition.Result, trans.Result
	return id.Result, s, err
}

// judge finds out why the server can't be used.
func (s *server) judge() error {
	switch s.edition {
	case editionAzure, editionManaged:
		// Their version says nothing.
	case 1, 2, 3, 4, editionEdge:
		major, _, _ := strings.Cut(s.version, ".")
		if n, err := strconv.Atoi(major); err != nil || n < oldest {
			return s.refuse("SQL Server 2016 (version 13) or later is needed")
		}
	case editionSynapse, editionServerles:
		return s.refuse("it is Azure Synapse Analytics or a Fabric warehouse, which have no application locks: use a SQL Server or an Azure SQL Database")
	case editionFabric:
		return s.refuse("it is a SQL database in Fabric, of which isn't known how its application locks behave")
	default:
		return s.refuse(fmt.Sprintf("its engine edition, %d, isn't known", s.edition))
	}
	switch {
	case s.updates != "READ_WRITE":
		return s.refuse(fmt.Sprintf("database %q is read-only, as on a secondary replica, and locks taken there exclude nobody on the primary: connect to the primary, without ApplicationIntent=ReadOnly", s.database))
	case s.trans != 0:
		return s.refuse("the connection came with an open transaction")
	}
	return nil
}

// refuse words why the server can't be used.
func (s *server) refuse(why string) error {
	return fmt.Errorf("server of version %q can't be used for locks: %s", s.version, why)
}

// sessionOptions are those that matter to locks, whatever the defaults of the
// server are: with XACT_ABORT an error would end what was asked for beside it.
const sessionOptions = "SET NOCOUNT ON;SET XACT_ABORT OFF;SET IMPLICIT_TRANSACTIONS OFF;SET LOCK_TIMEOUT -1;"

// Setup implements [dbsession.Dialect].
func (d *dialect) Setup(_ context.Context, c *dbsession.Conn, mark string, peer *dbsession.Identity) (int64, error) {
	row, err := c.Text(about)
	if err != nil {
		return 0, err
	}
	id, s, err := read(row)
	if err == nil {
		err = s.judge()
	}
	if err != nil {
		return 0, err
	}
	other := "0"
	if peer != nil {
		other = testMark(peer.Mark)
	}
	row, err = c.Text(sessionOptions + "DECLARE @r int;EXEC @r=sp_getapplock " + literal(mark) + ",'Exclusive','Session',0;SELECT @r," + other +
		",APPLOCK_MODE('public'," + literal(mark) + ",'Session')")
	if err != nil {
		return 0, err
	}
	var got, free dbsession.Step
	if err := errors.Join(got.Set(row[0]), free.Set(row[1])); err != nil {
		return 0, err
	}
	switch {
	case got.Result < 0:
		return 0, fmt.Errorf("the session's own mark can't be taken: %w", codeError(got.Result))
	case dbsession.Text(row[2]) != "Exclusive":
		return 0, s.refuse("a lock that was granted isn't held by the connection: is there a proxy between that shares connections?")
	case free.Result != 0:
		return 0, s.refuse("a lock that is held on one connection isn't seen on the next: do they lead to the same server, and to the same database?")
	}
	d.mu.Lock()
	d.server = s
	d.mu.Unlock()
	return id, nil
}
