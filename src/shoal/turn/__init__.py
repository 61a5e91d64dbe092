"""One turn: the context it sees, and the loop of model and tools."""
