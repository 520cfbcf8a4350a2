"""Numbers about attention: sparsity, entropy, heads, alignment, maps."""
