"""Plans: suites, planner, fingerprints, skip rules."""
