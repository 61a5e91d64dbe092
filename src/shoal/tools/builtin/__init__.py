"""Built-in tools. They depend on the domain's ports only."""
