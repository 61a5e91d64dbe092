"""Platform adapters. Each converts between one chat platform's messages and Shoal's."""
