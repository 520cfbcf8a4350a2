"""Lanes: how a Cell of each kind becomes a Record, inside the child process that measures it."""
