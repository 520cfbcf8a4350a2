"""Trackers: the runs of attnbench in wandb, TensorBoard or MLflow, through their own libraries."""
