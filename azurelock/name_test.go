package azurelock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// testdata/names.json has names that Medallion.Threading gives to blobs.
func TestNamesOfMedallion(t *testing.T) {
	var vectors []struct{ In, Out string }
	b, err := os.ReadFile("testdata/names.json")
	if err == nil {
		err = json.Unmarshal(b, &vectors)
	}
	if err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		if got := blobName(v.In, 1024); got != v.Out {
			t.Errorf("blobName(%q) = %q, want %q", v.In, got, v.Out)
		}
	}
}

func TestNamesOfOurOwn(t *testing.T) {
	for _, s := range []string{
		`a\b`, `\\a`, "a\x00b", "\x01", "a\u0085", "\ue000", "\ufffe", "\U0001ffff", "/a", "a/./b", "a/../b", "./a", "../a", "a./b",
		"__distlock__/x", "__distlock__/locks/x", permitName("x", 0), permitFence("x"), blobName(`a\b`, 1024),
	} {
		if got := blobName(s, 1024); !strings.HasPrefix(got, "__distlock__/locks/") {
			t.Errorf("blobName(%q) = %q", s, got)
		}
	}
	for _, s := range []string{"a", "a//b", "a.b", ".a", "__distlock__", "a b", "é", "漢", "😀", "👩‍👩‍👧", "%2F", "a?b#c"} {
		if got := blobName(s, 1024); got != s {
			t.Errorf("blobName(%q) = %q", s, got)
		}
	}
	long := strings.Repeat("x", 257)
	emulator, err := container.NewClientWithNoCredential("http://127.0.0.1:10000/devstoreaccount1/c", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := New(emulator, nil).BlobName(long); len(got) != 256 || !strings.HasPrefix(got, long[:256-88]) {
		t.Errorf("on the emulator's own address: %q", got)
	}
	other, err := container.NewClientWithNoCredential("http://127.0.0.1:10001/devstoreaccount1/c", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := New(other, nil).BlobName(long); got != long {
		t.Errorf("on another address: %q", got)
	}
}

func FuzzBlobName(f *testing.F) {
	for _, s := range []string{"a", "a/", "a.", `a\b`, "a/./b", strings.Repeat("/", 300), strings.Repeat("😀", 600), "__distlock__/x", "a\x00"} {
		f.Add(s, s+"b")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if one == "" || other == "" || !utf8.ValidString(one) || !utf8.ValidString(other) {
			return // no resource
		}
		for _, most := range []int{256, 1024} {
			a, b := blobName(one, most), blobName(other, most)
			if (a == b) != (one == other) {
				t.Errorf("%q and %q: %q and %q", one, other, a, b)
			}
			if n := len(utf16.Encode([]rune(a))); n == 0 || n > most {
				t.Errorf("%q has %d units", a, n)
			}
			if !utf8.ValidString(a) || strings.ContainsFunc(a, troublesome) || strings.HasSuffix(a, "/") || strings.HasSuffix(a, ".") ||
				strings.Contains(a, "./") || strings.Count(a, "/") > 253+88 {
				t.Errorf("blobName(%q) = %q", one, a)
			}
		}
	})
}
