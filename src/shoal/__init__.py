"""Shoal: a self-hosted runtime for AI agents that live in chats."""

__all__: tuple[str, ...] = ()
