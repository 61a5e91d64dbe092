"""Small changes to the core, to check that a test notices each of them: `make mutants`."""
