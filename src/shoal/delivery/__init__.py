"""Delivery of posts to platforms: the sender, previews, rate limits and live events."""
