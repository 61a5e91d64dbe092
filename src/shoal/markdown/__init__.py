"""Read, render and split Markdown. Pure: imports only the kernel."""
