"""What to run: suites, planner, fingerprints, skip rules."""
