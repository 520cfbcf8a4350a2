"""Run jobs through Slurm or Ray."""
