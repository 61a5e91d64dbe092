"""Setup: its questions, trying and writing the answers, and applying them to a running Shoal."""
