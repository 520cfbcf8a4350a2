"""Low-rank attention: projections, landmarks, synthesised weights."""
