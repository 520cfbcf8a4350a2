"""Train the positive control of each variant, and say which passed."""
