"""Where data lies, how it is fetched, prepared and checked."""
