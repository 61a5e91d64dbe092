"""Delivery of replies: the outbox, the sender, previews and pacing."""
