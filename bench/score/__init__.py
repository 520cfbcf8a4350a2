"""Records become comparable figures: quality, cost, Pareto frontier."""
