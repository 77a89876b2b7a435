package tdstest

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind byte

const (
	tEnd tokenKind = iota
	tWord
	tQuoted   // [name] or "name"
	tVariable // @name, and @@name
	tText     // 'text'
	tNational // N'text'
	tNumber
	tSign
)

type sqlToken struct {
	kind tokenKind
	text string // of a tSign or a tWord as it stands; of the others what it means
	line int32
}

// is tells whether the token is that keyword or sign.
func (t sqlToken) is(s string) bool {
	return t.kind == tSign && t.text == s || t.kind == tWord && strings.EqualFold(t.text, s)
}

func syntaxNear(t sqlToken) *sqlError {
	e := abortErr(102, 15, fmt.Sprintf("Incorrect syntax near '%s'.", t.text))
	e.line = t.line
	return e
}

// lex cuts a batch into tokens. The last one is tEnd.
func lex(sql string) ([]sqlToken, error) {
	var tokens []sqlToken
	line := int32(1)
	for i := 0; i < len(sql); {
		c, size := utf8.DecodeRuneInString(sql[i:])
		start, startLine := i, line
		add := func(k tokenKind, text string) {
			tokens = append(tokens, sqlToken{k, text, startLine})
		}
		switch {
		case c == '\n':
			line++
			i++
		case unicode.IsSpace(c):
			i += size
		case strings.HasPrefix(sql[i:], "--"):
			for i < len(sql) && sql[i] != '\n' {
				i++
			}
		case strings.HasPrefix(sql[i:], "/*"): // they nest
			depth := 0
			for i < len(sql) {
				if strings.HasPrefix(sql[i:], "/*") {
					depth++
					i += 2
				} else if strings.HasPrefix(sql[i:], "*/") {
					depth--
					i += 2
					if depth == 0 {
						break
					}
				} else {
					if sql[i] == '\n' {
						line++
					}
					i++
				}
			}
			if depth > 0 {
				return nil, abortErr(113, 15, "Missing end comment mark '*/'.")
			}
		case c == '\'' || c == '[' || c == '"' || (c == 'N' || c == 'n') && strings.HasPrefix(sql[i+1:], "'"):
			k, end := tText, byte('\'')
			switch c {
			case '[':
				k, end = tQuoted, ']'
			case '"':
				k, end = tQuoted, '"'
			case 'N', 'n':
				k = tNational
				i++
			}
			i++
			var b strings.Builder
			for {
				if i >= len(sql) {
					return nil, abortErr(105, 15, fmt.Sprintf("Unclosed quotation mark after the character string '%s'.", b.String()))
				}
				if sql[i] == end {
					if i+1 >= len(sql) || sql[i+1] != end {
						break
					}
					i++
				}
				if sql[i] == '\n' {
					line++
				}
				b.WriteByte(sql[i])
				i++
			}
			i++
			add(k, b.String())
		case c == '@' || c == '_' || c == '#' || unicode.IsLetter(c):
			for i < len(sql) {
				r, n := utf8.DecodeRuneInString(sql[i:])
				if r != '@' && r != '_' && r != '#' && r != '$' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
					break
				}
				i += n
			}
			if c == '@' {
				add(tVariable, strings.ToLower(sql[start:i]))
			} else {
				add(tWord, sql[start:i])
			}
		case c >= '0' && c <= '9':
			for i < len(sql) && (sql[i] >= '0' && sql[i] <= '9' || sql[i] == '.') {
				i++
			}
			add(tNumber, sql[start:i])
		default:
			sign := ""
			for _, s := range []string{"<=", ">=", "<>", "!=", "+=", "-=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",", ";", ".", ":", "&", "|", "^"} {
				if strings.HasPrefix(sql[i:], s) {
					sign = s
					break
				}
			}
			if sign == "" {
				return nil, syntaxNear(sqlToken{tSign, string(c), line})
			}
			i += len(sign)
			add(tSign, sign)
		}
	}
	return append(tokens, sqlToken{tEnd, "", line}), nil
}
