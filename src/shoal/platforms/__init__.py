"""Platform adapters: each converts one chat platform's messages to Shoal's and back."""
