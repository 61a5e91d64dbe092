"""Chat platforms as wire-level fakes on loopback. They reject what the real ones reject, and fail on request."""
