"""Shoal's tests: unit, contracts, scenarios, e2e and tidy."""
