"""Fuzz targets: `make fuzz` runs each for a while on random input; see __main__.py."""
