"""Choose a variant for a length, a memory and a quality."""
