"""The nouns of Shoal: ids, messages, events, ports, errors and the clock. No I/O; imports nothing else of ours."""
