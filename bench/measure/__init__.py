"""Numbers about work: time, memory, FLOPs, load."""
