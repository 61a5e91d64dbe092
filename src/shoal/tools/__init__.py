"""The tool registry, and the executor that runs every tool call."""
