"""Where commands run: on the host, under bubblewrap or in a container, within limits."""
