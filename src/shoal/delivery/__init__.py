"""Replies on their way out: the outbox, the sender, splitting, markup and pacing."""
