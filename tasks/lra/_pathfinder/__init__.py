"""Generator and archive of Pathfinder."""
