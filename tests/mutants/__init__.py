"""Mutation testing: small changes to the core, each of which a test must detect: `make mutants`."""
