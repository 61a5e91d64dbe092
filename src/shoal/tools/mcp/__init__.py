"""Tools of MCP servers: connections that last, and what a model is told of them and gets from them."""
