"""Pure functions for text formats and encodings; imports the kernel only."""
