"""Executors: where Blocks run."""
