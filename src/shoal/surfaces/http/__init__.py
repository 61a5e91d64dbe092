"""The HTTP server: the JSON API, event streams, webhooks and the OpenAI-compatible API."""
