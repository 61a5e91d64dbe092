"""Matrix: the client-server API of a homeserver, with encrypted rooms where the extra `matrix` is installed."""
