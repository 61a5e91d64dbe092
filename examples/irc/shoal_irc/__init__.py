"""IRC as a platform of Shoal."""
