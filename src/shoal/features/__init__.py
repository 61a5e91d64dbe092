"""Features, one package each. See `shoal/feature.py`."""
