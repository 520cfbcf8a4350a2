"""Kernels: fused forms of variants, which give what the eager code beside them defines."""
