"""Triton kernels and FlexAttention for GPU."""
