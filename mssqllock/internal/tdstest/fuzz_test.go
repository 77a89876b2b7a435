package tdstest

import (
	"bytes"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{"SELECT 1", "DECLARE @r int = (1); IF (1=1) AND ((2)=2) EXEC @r = sp_getapplock N'x', @p OUTPUT ELSE RETURN", "((((", "/*/**/", "CREATE SEQUENCE a.b START WITH -1", "SELECT CASE WHEN (1=1) THEN 1 END FROM (VALUES (1)) AS t(v) ORDER BY v DESC"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = parse(s)
		_, _ = parseDecls(s)
	})
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte{msgRPC, statusLast, 0, 20, 0, 0, 1, 0, 4, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b))
		if err != nil {
			return
		}
		r := &reader{b: m.data}
		r.allHeaders()
		_, _ = parseRPC(r)
		_, _ = parseLogin(m.data)
	})
}
