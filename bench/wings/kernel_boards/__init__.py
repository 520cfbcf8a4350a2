"""The boards of attention kernels on a GPU, beside the best dense kernel."""
