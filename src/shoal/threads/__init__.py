"""A mailbox and an actor for each thread, and the orchestrator that wakes them."""
