"""Fixed, learned and hashed sparsity patterns."""
