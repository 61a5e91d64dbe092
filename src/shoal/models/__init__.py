"""Model providers: each streams one model interface's answers as Shoal's model events."""
