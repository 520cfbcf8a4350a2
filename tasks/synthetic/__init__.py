"""Synthetic tasks: sequences drawn from seeds, each of which asks for one ability."""
