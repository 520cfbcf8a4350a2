"""Executors: where jobs run."""
