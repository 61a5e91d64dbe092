"""Unit tests. The folders mirror src/shoal."""
