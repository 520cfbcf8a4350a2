"""Wrappers: what stands round any variant, named before it, such as `gate+softmax`."""
