"""A mailbox and an actor per thread, and the orchestrator that wakes them."""
