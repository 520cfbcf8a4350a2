"""Grammar and baselines of ListOps."""
