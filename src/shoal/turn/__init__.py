"""One turn: the context that the model sees, and the loop of model and tools."""
