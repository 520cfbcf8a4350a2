"""The Python interface, a module for each product of the core; the package `attnbench` itself finds them."""
