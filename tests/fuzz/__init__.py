"""Fuzz targets. `make fuzz` runs each target on random input for some time. See __main__.py."""
