"""Small changes to the core, and whether a test notices each: `make mutants`."""
