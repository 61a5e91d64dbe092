"""Model providers. Each streams the answers of one model API as Shoal's model events."""
