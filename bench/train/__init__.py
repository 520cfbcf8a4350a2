"""Training: batches, checkpoints, objectives."""
