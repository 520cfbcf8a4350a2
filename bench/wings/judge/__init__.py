"""Judge one attention on a page, in minutes."""
