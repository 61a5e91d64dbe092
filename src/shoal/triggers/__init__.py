"""What starts a turn without a person: cron, event files, heartbeats and webhooks."""
