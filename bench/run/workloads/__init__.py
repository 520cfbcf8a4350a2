"""Workloads: the pieces of work that are timed."""
