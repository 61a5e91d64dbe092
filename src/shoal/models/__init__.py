"""Model providers. Each one streams a model API's responses as Shoal's model events."""
