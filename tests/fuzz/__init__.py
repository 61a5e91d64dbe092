"""Fuzz targets. `make fuzz` runs each on random input for some time; see __main__.py."""
