package filelock

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func init() {
	distlock.Register("file", func(_ context.Context, u *url.URL) (driver.Backend, error) {
		dir, o, err := parseURL(u)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
		}
		if dir == "" {
			if dir, err = DefaultDir(); err != nil {
				return nil, err
			}
		}
		return New(dir, &o)
	})
}

// parseURL returns the directory and the options that a URL stands for.
func parseURL(u *url.URL) (dir string, o Options, err error) {
	const forms = "the forms are file:///directory, and file: for a private directory of this user"
	switch {
	case u.Opaque != "":
		return "", o, fmt.Errorf("a relative path: %s", forms)
	case u.User != nil || u.Host != "" && u.Host != "localhost":
		return "", o, fmt.Errorf("a host, or a slash too few: %s", forms)
	case u.Fragment != "":
		return "", o, fmt.Errorf("a # in the URL: write it %%23; %s", forms)
	case strings.Contains(u.Path, "\x00"):
		return "", o, fmt.Errorf("a NUL in the path: %s", forms)
	}
	const parameters = "the parameters are mode=OCTAL, tokens=none and unsafe_mount=allow"
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", o, fmt.Errorf("the query can't be parsed; %s", parameters)
	}
	for key, values := range query {
		if len(values) > 1 {
			return "", o, fmt.Errorf("parameter %s is there twice", key)
		}
		switch value := values[0]; key {
		case "mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil || mode&^0o777 != 0 || mode&0o600 != 0o600 {
				return "", o, fmt.Errorf("mode %q: it is octal, like 0660, and the owner must be able to read and write", value)
			}
			o.FileMode = fs.FileMode(mode)
		case "tokens":
			if value != "none" {
				return "", o, fmt.Errorf("tokens %q: the only value is none", value)
			}
			o.NoTokens = true
		case "unsafe_mount":
			if value != "allow" {
				return "", o, fmt.Errorf("unsafe_mount %q: the only value is allow", value)
			}
			o.AllowUnsafeMount = true
		default:
			return "", o, fmt.Errorf("unknown parameter %q; %s", key, parameters)
		}
	}
	dir = u.Path
	if runtime.GOOS == "windows" {
		// file:///C:/locks has the path /C:/locks.
		if len(dir) >= 3 && dir[0] == '/' && dir[2] == ':' {
			dir = dir[1:]
		}
		dir = filepath.FromSlash(dir)
	}
	return dir, o, nil
}
