"""Benchmarks, run by `make bench`. They compare Shoal's own cost with the bare requests; see docs/benchmark.md."""
