"""Configuration: TOML files and environment variables, read into frozen records."""
