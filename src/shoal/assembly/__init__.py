"""Opens the parts of a running Shoal, each after what it needs. `shoal.app.open_app` calls these in order."""
