"""Text formats and how texts read, as pure functions; imports the kernel only."""
