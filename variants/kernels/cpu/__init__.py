"""C++ kernels for CPU."""
