"""Platform adapters: each turns one chat platform's messages into Shoal's and back."""
