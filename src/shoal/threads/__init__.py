"""Many turns: a mailbox and an actor a thread, and the orchestrator that wakes them."""
