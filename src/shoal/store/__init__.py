"""The database: the journal, the queues and every other table, for SQLite and PostgreSQL."""
