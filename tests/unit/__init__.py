"""Unit tests, in the same folders as src/shoal."""
