"""C++ and blocked kernels for CPU."""
