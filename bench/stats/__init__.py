"""Pure rules of numbers: intervals, ratios, ranking, bootstrap."""
