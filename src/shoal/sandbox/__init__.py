"""Sandboxes that run commands within limits: the host, bubblewrap, containers and macOS seatbelt."""
