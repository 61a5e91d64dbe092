"""Functions that open the parts of a running Shoal. `shoal.app.open_app` calls them in dependency order."""
