"""Benchmarks, run by `make bench`. They compare Shoal's overhead with bare requests to the model; see
docs/benchmark.md.
"""
