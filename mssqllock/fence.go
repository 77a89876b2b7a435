package mssqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// SequenceDDL returns the statement that makes the sequence of
// [Options.Sequence]. It starts at the clock, in microseconds since 1970, so that
// one that was dropped and made again doesn't repeat any number.
func SequenceDDL(sequence string) (string, error) {
	quoted, err := quoteSequence(sequence)
	if err != nil {
		return "", fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
	}
	return fmt.Sprintf("CREATE SEQUENCE %s AS bigint START WITH %d INCREMENT BY 1 NO CYCLE", quoted, time.Now().UnixMicro()), nil
}

// quoteSequence quotes a sequence's name, with or without its schema.
func quoteSequence(sequence string) (string, error) {
	parts := strings.Split(sequence, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("sequence %q: name or schema.name is needed", sequence)
	}
	for i, p := range parts {
		if p == "" || !utf8.ValidString(p) || len(utf16.Encode([]rune(p))) > 128 || strings.Contains(p, "\x00") {
			return "", fmt.Errorf("sequence %q: name or schema.name is needed", sequence)
		}
		parts[i] = "[" + strings.ReplaceAll(p, "]", "]]") + "]"
	}
	return strings.Join(parts, "."), nil
}

// count returns the next number for what is held, on the very session that holds
// it: after the loss of that, nobody is told a token that is larger than the next
// holder's.
func (b *Backend) count(ctx context.Context, asked time.Time, s *dbsession.Session) (uint64, error) {
	if b.dialect.sequence == "" {
		return 0, nil
	}
	b.mu.Lock()
	fenced := b.fenced
	b.mu.Unlock()
	if !fenced {
		judging, cancel := b.pool.Within(ctx, asked)
		err := b.judgeSequence(judging, s)
		cancel()
		if err != nil {
			return 0, err
		}
	}
	st := dbsession.Step{Verb: doCount, Asked: asked}
	err := b.pool.DoOn(ctx, s, &st)
	switch {
	case isError(err, errNoSuchObject):
		return 0, fmt.Errorf("sequence %s: make it with the statement that SequenceDDL returns, or set CreateSequence (create_sequence=true in the URL): %w", b.opt.Sequence, err)
	case isError(err, errObjectPermitted):
		return 0, fmt.Errorf("sequence %s: the account needs the permission UPDATE on it: %w", b.opt.Sequence, err)
	case err != nil:
		return 0, fmt.Errorf("sequence %s: %w", b.opt.Sequence, err)
	case st.Result <= 0:
		return 0, fmt.Errorf("sequence %s: %d is no token, it must be above 0", b.opt.Sequence, st.Result)
	}
	b.mu.Lock()
	b.fenced = true
	b.mu.Unlock()
	return uint64(st.Result), nil
}

// count implements the verb doCount. Two references to a sequence in one statement
// would be given the same number.
// https://learn.microsoft.com/sql/t-sql/functions/next-value-for-transact-sql
func (d *dialect) count(ctx context.Context, c *dbsession.Conn, steps []*dbsession.Step) error {
	query := "SELECT NEXT VALUE FOR " + d.sequence
	if len(steps) > 1 {
		var declare, body, results strings.Builder
		for i := range steps {
			fmt.Fprintf(&declare, ",@r%d bigint", i)
			fmt.Fprintf(&body, "SET @r%d=NEXT VALUE FOR %s;", i, d.sequence)
			fmt.Fprintf(&results, ",@r%d", i)
		}
		query = "DECLARE " + declare.String()[1:] + ";" + body.String() + "SELECT " + results.String()[1:]
	}
	row, err := c.RowUntil(ctx, query, nil)
	if err != nil {
		return err
	}
	for i, s := range steps {
		if err := s.Set(row[i]); err != nil {
			return err
		}
	}
	return nil
}

// judgeSequence looks whether the numbers of the sequence rise, and makes it if
// it isn't there and is to be made.
// https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-sequences-transact-sql
func (b *Backend) judgeSequence(ctx context.Context, s *dbsession.Session) error {
	found, good := false, false
	look := func() error {
		return b.pool.Query(ctx, "SELECT CAST(increment AS bigint),CAST(is_cycling AS int) FROM sys.sequences WHERE object_id=OBJECT_ID("+literal(b.dialect.sequence)+")",
			func(row []sqldriver.Value) {
				var step, cycles dbsession.Step
				err := errors.Join(step.Set(row[0]), cycles.Set(row[1]))
				found, good = true, err == nil && step.Result > 0 && cycles.Result == 0
			})
	}
	if err := look(); err != nil {
		return fmt.Errorf("sequence %s: %w", b.opt.Sequence, err)
	}
	if !found && b.opt.CreateSequence {
		ddl, _ := SequenceDDL(b.opt.Sequence) // quoted before
		if err := b.pool.Exec(ctx, s, ddl); err != nil && !isError(err, errObjectExists) {
			if isError(err, errNoPermission) {
				return fmt.Errorf("sequence %s: the account may not make it: %w", b.opt.Sequence, err)
			}
			return fmt.Errorf("sequence %s: %w", b.opt.Sequence, err)
		}
		if err := look(); err != nil {
			return fmt.Errorf("sequence %s: %w", b.opt.Sequence, err)
		}
	}
	// One that the account may not see isn't found; that is for NEXT VALUE FOR.
	if found && !good {
		return fmt.Errorf("sequence %s: its numbers must rise: INCREMENT BY must be positive, and CYCLE must not be set", b.opt.Sequence)
	}
	return nil
}
