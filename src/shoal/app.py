"""The wiring, read first: builds the running system from a configuration."""
