//go:build linux

package main

import (
	"math/bits"
	"slices"
)

// median returns the middle of the values, or the mean of the two there. There
// must be one at least.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the smallest of the values that p percent of them don't
// exceed. There must be one at least.
func percentile(values []int64, p int) int64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// A histogram counts durations, to within a hundredth. What isn't negative fits.
type histogram struct {
	Counts map[int]int64 // by bucket
	Max    int64
}

func newHistogram() *histogram { return &histogram{Counts: make(map[int]int64)} }

// bucket returns where v is counted: values below 128 each for themselves, and
// 64 buckets for each doubling above.
func bucket(v int64) int {
	shift := max(0, bits.Len64(uint64(v))-7)
	return shift<<6 + int(v>>shift)
}

// middle returns the value that stands for those of a bucket.
func middle(bucket int) int64 {
	shift := max(0, bucket>>6-1)
	low := int64(bucket-shift<<6) << shift
	return low + (int64(1)<<shift)/2
}

// merge adds what one goroutine has counted.
func (h *histogram) merge(o *histogram) {
	for b, n := range o.Counts {
		h.Counts[b] += n
	}
	h.Max = max(h.Max, o.Max)
}

// percentile returns the value that p percent don't exceed, and 0 of none.
func (h *histogram) percentile(p int) int64 {
	var all, below int64
	for _, n := range h.Counts {
		all += n
	}
	buckets := make([]int, 0, len(h.Counts))
	for b := range h.Counts {
		buckets = append(buckets, b)
	}
	slices.Sort(buckets)
	for _, b := range buckets {
		if below += h.Counts[b]; below*100 >= all*int64(p) {
			return min(middle(b), h.Max)
		}
	}
	return 0
}

// A tally counts for one goroutine what becomes a histogram.
type tally struct {
	counts [58 << 6]int64
	max    int64
}

func (t *tally) add(v int64) {
	t.counts[bucket(v)]++
	t.max = max(t.max, v)
}

func (t *tally) histogram() *histogram {
	h := newHistogram()
	for b, n := range t.counts {
		if n > 0 {
			h.Counts[b] = n
		}
	}
	h.Max = t.max
	return h
}
