"""Records on disk and as a table."""
