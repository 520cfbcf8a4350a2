"""Profile one variant on a page, in minutes."""
