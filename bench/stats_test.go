//go:build linux

package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMedianAndPercentile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{7}, 7}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.values, got, c.want)
		}
	}
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(100 - i)
	}
	for _, c := range []struct {
		values []int64
		p      int
		want   int64
	}{{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1}, {[]int64{5}, 99, 5}, {[]int64{1, 2}, 50, 1}, {[]int64{1, 2}, 99, 2}} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("p%d of %d values: %d, want %d", c.p, len(c.values), got, c.want)
		}
	}
}

func TestBuckets(t *testing.T) {
	last := -1
	for shift := range 63 {
		for _, v := range []int64{1<<shift - 1, 1 << shift, 1<<shift + 1<<shift/3} {
			b := bucket(v)
			if b < last {
				t.Fatalf("%d is in bucket %d, after one in %d", v, b, last)
			}
			last = b
			if m := middle(b); math.Abs(float64(m-v)) > 0.01*float64(v) {
				t.Errorf("%d stands for %d", m, v)
			}
		}
	}
	if b := bucket(math.MaxInt64); b >= len(tally{}.counts) {
		t.Errorf("the longest is in bucket %d", b)
	}
}

func TestHistogram(t *testing.T) {
	var all []int64
	h := newHistogram()
	for range 4 {
		var one tally
		for range 5000 {
			v := int64(math.Exp(rand.Float64() * 20))
			all = append(all, v)
			one.add(v)
		}
		h.merge(one.histogram())
	}
	for _, p := range []int{1, 50, 99, 100} {
		got, want := float64(h.percentile(p)), float64(percentile(all, p))
		if math.Abs(got-want) > 0.01*want {
			t.Errorf("p%d is %v, want %v", p, got, want)
		}
	}
	if want := slices.Max(all); h.Max != want {
		t.Errorf("max %d, want %d", h.Max, want)
	}
	if p := newHistogram().percentile(50); p != 0 {
		t.Errorf("p50 of nothing: %d", p)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit  unit
		value float64
		want  string
	}{
		{nanoseconds, 44.04, "44.0 ns"},
		{nanoseconds, 0, "0 ns"},
		{nanoseconds, 999.4, "999 ns"},
		{nanoseconds, 999.9, "1.00 µs"},
		{nanoseconds, 52_345, "52.3 µs"},
		{nanoseconds, 5_234_500, "5.23 ms"},
		{nanoseconds, 1.6e9, "1.60 s"},
		{nanoseconds, 123.4e9, "123 s"},
		{perSecond, 371_912, "372,000/s"},
		{perSecond, 3_712_345, "3,710,000/s"},
		{perSecond, 0.5, "0/s"},
		{count, 5000, "5,000"},
		{count, 0, "0"},
		{count, 1.001, "1"},
		{count, 0.187, "0.19"},
		{count, 3.5, "3.5"},
		{fraction, 0.481, "48 %"},
		{fraction, 0, "0 %"},
		{fraction, 0.0012, "0.12 %"},
		{bytesUsed, 258e6, "258 MB"},
		{bytesUsed, 4_830_000, "4.83 MB"},
		{bytesUsed, 100_000, "0.100 MB"},
		{bytesUsed, 99_900, "99.9 kB"},
		{bytesUsed, 254.2, "254 B"},
		{bytesUsed, -12_345, "-12.3 kB"},
		{bytesUsed, -1_230_000, "-1.23 MB"},
	} {
		if got := format(c.unit, c.value); got != c.want {
			t.Errorf("%v: %q, want %q", c.value, got, c.want)
		}
	}
}
