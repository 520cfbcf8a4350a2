"""A stranger's variant and task for attnbench."""
