"""A plan becomes Records: runner, executors, workers, lanes."""
