"""Platform adapters. Each adapter converts between one chat platform's messages and Shoal's."""
