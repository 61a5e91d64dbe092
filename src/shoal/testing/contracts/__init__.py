"""One contract suite a port, run over every implementation of it and over its fake."""
