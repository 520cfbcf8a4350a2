"""Dashboards: a Board as text, and nothing else."""
