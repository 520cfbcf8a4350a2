"""Data: where it lies, and how it is fetched, prepared and checked."""
