"""Setting up: what is asked, how it is tried and written, and how it counts in a Shoal that runs."""
