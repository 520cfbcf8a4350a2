"""The map of costs: all sweeps of one machine as one board."""
