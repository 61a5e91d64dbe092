"""Tests of Shoal: unit, contracts, scenarios, e2e and tidy."""
