"""Tools that a model may call: the registry, and the executor that runs every call."""
