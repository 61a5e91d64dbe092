"""Google Chat: events by HTTP or Pub/Sub, answers by its REST API."""
