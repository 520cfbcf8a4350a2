"""Long Range Arena."""
