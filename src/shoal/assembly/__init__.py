"""Opens the parts of a running Shoal, each after its dependencies. `shoal.app.open_app` calls these in order."""
