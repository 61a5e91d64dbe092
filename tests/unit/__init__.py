"""Tests of single parts, in the folders of src/shoal."""
