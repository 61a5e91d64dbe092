"""Who runs which thread, now: in one process, or over many machines."""
