"""Pure functions for text formats and encodings. Imports only the kernel."""
