"""Features: each folder contains everything that belongs to one feature. See `shoal/feature.py`."""
