"""Telegram: long polling or a webhook in, the Bot API out."""
