"""One turn: building the model's context, then calling the model and its tools in a loop."""
