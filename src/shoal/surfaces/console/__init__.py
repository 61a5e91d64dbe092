"""The web console: static files that the HTTP server serves."""
