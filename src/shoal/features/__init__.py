"""Everything of a feature in one folder; see `shoal/feature.py`."""
