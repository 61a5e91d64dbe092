"""Discord: the gateway in, the REST API out."""
