"""Built-in tools. They depend only on the domain's ports."""
