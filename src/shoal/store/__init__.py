"""Persistence in SQLite or PostgreSQL: the event journal, the queues and all other tables."""
