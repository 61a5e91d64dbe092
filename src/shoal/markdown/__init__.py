"""Parse, render and split Markdown. Imports only the kernel."""
