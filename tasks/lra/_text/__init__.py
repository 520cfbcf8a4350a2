"""Reading and baselines of the text tasks."""
