"""`make bench`: what Shoal itself costs, beside the bare requests it makes; docs/benchmark.md explains each line."""
