"""The database for SQLite and PostgreSQL: the journal, the queues and all other tables."""
