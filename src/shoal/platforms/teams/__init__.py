"""Microsoft Teams, by the Bot Framework's REST API."""
